"""Scores of LiRA, from the folders of the code of its paper.

    LOGDIR/experiment-{i}_{N}/keep.npy             [n] which examples it kept
    LOGDIR/experiment-{i}_{N}/scores/{epoch}.npy   [n, augmentations]
    LOGDIR/experiment-{i}_{N}/hparams.json         pkeep, num_experiments, ...

One of the models is the target, the others are shadow models. The scores in the
files are log p/(1 - p) of the true class, which are higher for members. What
`plot.py` makes of them, `prediction`, is lower for members; it is never written
to a file.

References: tensorflow/privacy, `research/mi_lira_2021/` at 3d499e6: `train.py`
(get_data, main), `score.py`, `plot.py` (load_data, generate_ours,
generate_ours_offline, generate_global). Carlini et al., Membership inference
attacks from first principles (2022), algorithm 1.
"""

import functools
import os
import pathlib
from typing import Any, Literal, Unpack, get_args

import numpy as np

from epe_jax import io
from epe_jax.epsilon.types import Scores
from epe_jax.scores.formats import base
from epe_jax.scores.formats.base import ScoreFormat

Attack = Literal['online', 'offline', 'global']

# As in plot.py, which has it where shadow models all agree.
_MIN_STD = 1e-30


def read_lira(
  path: str | os.PathLike,
  *,
  attack: Attack = 'online',
  fix_variance: bool = True,
  **settings: Unpack[base.Settings],
) -> Scores:
  """LiRA scores of one target model: those of `plot.py`, but for the sign.

  Where every example is in exactly half of the N models, as `--num_experiments`
  has it, the shadow models that kept an example are N/2 - 1 if the target kept
  it, and N/2 if not: their number gives the coin away. All examples are
  therefore compared with equally many models of each kind, as in `plot.py`.

  Args:
    path: the folder of the target model. All others in the same folder are its
      shadow models.
    attack: 'online' is log p_in(s)/p_out(s), with normal laws of the scores s of
      shadow models that kept the example and of those that did not; 'offline'
      is -log p_out(s); 'global' is s itself, without shadow models. Each is the
      mean over augmentations.
    fix_variance: one variance for all examples, which is better with fewer than
      64 shadow models.
    **settings: as in `base.Settings`. The design of the tool is what hparams.json
      says: 'coin_flip', since `train.py` flips a coin for each example, with
      probability int(pkeep N)/N for N models trained together and pkeep for one
      alone; 'fixed' if that file is missing, or if `only_subset` left out all
      examples from some index on, which had no coin.

  Returns:
    Scores of all examples that have one.

  Raises:
    FileNotFoundError: a file is missing.
    ValueError: a setting makes no sense, arrays do not match, or too few shadow
      models kept an example or left it out.
  """
  path = pathlib.Path(path)
  if attack not in get_args(Attack):
    raise ValueError(f'attack={attack!r} is none of {get_args(Attack)}.')
  target, kept = _read_model(path)
  if attack == 'global':
    scores = target.mean(axis=1)
  else:
    shadow, keep = _read_shadow_models(path, target.shape)
    scores = _compare(path, target, shadow, keep, attack, fix_variance)
  design, probability = _read_design(path, settings.get('design'))
  settings.setdefault('design', design)
  settings.setdefault('inclusion_probability', probability)
  return base.split_by_label(
    path, scores, kept, names=('scores', 'keep.npy'), **settings
  )


def from_lira(
  prediction: Any, answers: Any, **settings: Unpack[base.Settings]
) -> Scores:
  """Scores from what the attacks in LiRA's `plot.py` return.

  Args:
    prediction: [n], lower for members, for one target model (ntest=1).
    answers: [n], whether the target model kept the example.
    **settings: as in `base.Settings`. `train.py` flips a coin for each example:
      give design 'coin_flip' for its models.

  Raises:
    ValueError: shapes differ or answers are neither true nor false.
  """
  settings.setdefault('higher', 'out')
  return base.split_by_label(
    'LiRA',
    np.asarray(prediction),
    np.asarray(answers),
    names=('prediction', 'answers'),
    **settings,
  )


_ATTACKS: dict[str, Attack] = {
  'lira': 'online',
  'lira_offline': 'offline',
  'lira_global': 'global',
}
FORMATS = tuple(
  ScoreFormat(
    name,
    f'a model of LiRA, attack {attack}',
    functools.partial(read_lira, attack=attack),
    fields=frozenset({'keep.npy'} if attack == 'online' else ()),
  )
  for name, attack in _ATTACKS.items()
)


def _read_model(folder):
  """Scores [n, augmentations] of a model's last epoch, and what it kept [n]."""
  if not (folder / 'keep.npy').is_file():
    raise FileNotFoundError(
      f'{folder} has no keep.npy. Give the folder of one model of LiRA, such as '
      'exp/cifar10/experiment-0_16.'
    )
  files = sorted((folder / 'scores').glob('*.npy'))
  if not files:
    raise FileNotFoundError(
      f'{folder}/scores has no .npy. Run inference.py and score.py of LiRA, or '
      'move this model to another folder if it is not to be used.'
    )
  scores, keep = (io.read_array(p) for p in (files[-1], folder / 'keep.npy'))
  scores = scores.reshape(len(scores), -1)
  # `--dataset_size` of inference.py may score the first examples alone.
  if keep.ndim != 1 or keep.dtype != bool or len(keep) < len(scores):
    raise ValueError(
      f'{folder}/keep.npy is {keep.dtype}{list(keep.shape)}, but there are scores '
      f'of {len(scores):,} examples; give bool[n], whether the model kept each.'
    )
  return scores.astype(np.float64), keep[: len(scores)]


def _read_shadow_models(target, shape):
  """Scores [m, n, augmentations] of all other models, and what they kept."""
  others = sorted(
    p.parent
    for p in target.resolve().parent.glob('*/keep.npy')
    if p.parent != target.resolve()
  )
  if not others:
    raise FileNotFoundError(
      f'{target} has no shadow models next to it. Put them into the same folder, '
      "or take the score of the target alone with attack='global' "
      '(--from=lira_global).'
    )
  models = [_read_model(folder) for folder in others]
  for folder, (scores, _) in zip(others, models):
    if scores.shape != shape:
      raise ValueError(
        f'{folder} has scores {list(scores.shape)}, but the target {target} has '
        f'{list(shape)}; score all models alike.'
      )
  scores, keep = zip(*models)
  return np.stack(scores), np.stack(keep)


def _compare(path, target, shadow, keep, attack, fix_variance):
  if attack == 'offline':
    log_out, _ = _log_density(path, target, shadow, ~keep, fix_variance)
    return -log_out.mean(axis=1)
  log_in, std = _log_density(path, target, shadow, keep, fix_variance)
  # plot.py gives both laws the spread of models that kept an example.
  std = std if fix_variance else None
  log_out, _ = _log_density(path, target, shadow, ~keep, fix_variance, std)
  return (log_in - log_out).mean(axis=1)


def _log_density(path, target, shadow, chosen, fix_variance, std=None):
  """log density of the target's scores, by the chosen models of each example.

  Args:
    path: of the target.
    target: [n, augmentations].
    shadow: [m, n, augmentations].
    chosen: [m, n] which models to take.
    fix_variance: whether there is one spread for all.
    std: of the law; None to take that of the scores.

  Returns:
    [n, augmentations], and the spread.
  """
  num = int(chosen.sum(axis=0).min())
  # Equally many models for every example: their number gives the coin away.
  if num < (1 if fix_variance else 2):
    example = int(chosen.sum(axis=0).argmin())
    raise ValueError(
      f'{path}: of {len(shadow)} shadow models only {num} may be compared with '
      f'in example {example}, as nearly all kept it or left it out. Train more '
      "of them with --num_experiments, or use attack='global'."
    )
  first = np.argsort(~chosen, axis=0, kind='stable')[:num]
  scores = np.take_along_axis(shadow, first[..., None], axis=0)
  if std is None:
    std = scores.std() if fix_variance else scores.std(axis=0)
  mean = np.median(scores, axis=0)
  # Here and not above: it takes most of a second to import.
  from scipy import stats

  return stats.norm.logpdf(target, mean, std + _MIN_STD), std


def _read_design(folder, design):
  path = folder / 'hparams.json'
  if not path.is_file():
    return 'fixed', 0.5
  try:
    values = io.read_json(path)
    models, share = values['num_experiments'], float(values['pkeep'])
    subset = values.get('only_subset')
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(
      f'{path} is not what train.py of LiRA writes ({error!r}); restore it, or '
      'remove it and give design and inclusion_probability.'
    ) from error
  if subset is not None and design == 'coin_flip':
    raise ValueError(
      f"design='coin_flip', but {path} has only_subset={subset}: examples from "
      "there on had no coin and were all left out. Give design='fixed'."
    )
  if subset is not None:
    return 'fixed', 0.5
  return 'coin_flip', share if models is None else int(share * models) / models
