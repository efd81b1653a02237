"""report.md: a finished run as a page."""

from collections.abc import Mapping
import json
import textwrap

from epe_jax.experiment.run_result import RunResult
from epe_jax.report import estimate_table, facts, narrative, risk_table
from epe_jax.text import tables


def format_page(result: RunResult, captions: Mapping[str, str]) -> str:
  """The page of a run: facts, estimates, what they mean, figures, how to repeat.

  Args:
    result: what result.json holds.
    captions: file name -> caption of each figure, in their order.

  Returns:
    Markdown that ends in a newline.
  """
  images = [f'![{text}]({name})\n\n*{text}*' for name, text in captions.items()]
  if result.is_audited:
    title = f'Privacy audit: {result.task}'
    table = estimate_table.make_table(result.audit.attacks)
    estimates = ['## Estimates', tables.format_markdown(table)]
    risks = risk_table.make_table(result.audit.attacks)
    if risks is not None:
      estimates += [
        '## What it means for a person',
        risk_table.EXPLANATION,
        tables.format_markdown(risks),
      ]
      estimates += filter(
        None, [risk_table.explain_regret(result.audit.attacks)]
      )
  else:
    title, estimates = f'Training run: {result.task}, not audited', []
  run = tables.Table('', ('run', result.task), facts.list_facts(result))
  parts = [
    f'# {title}',
    tables.format_markdown(run),
    *estimates,
    '## In words',
    '\n'.join(f'- {paragraph}' for paragraph in narrative.narrate(result)),
    '## Figures',
    *images,
    '## How to reproduce',
    _explain_reproduction(result),
  ]
  return '\n\n'.join(parts) + '\n'


def _explain_reproduction(result: RunResult) -> str:
  config = json.dumps(result.config, indent=2, ensure_ascii=False)
  return textwrap.dedent("""\
    The run again, in a directory of its own:

    ```sh
    python scripts/train.py --config=configs/{task}.py --workdir=NEW
    ```

    with these settings; give one that differs from the default of the config
    as `--config.name=value`:

    ```json
    {config}
    ```

    This page and its figures again, without training:

    ```sh
    python scripts/report.py WORKDIR
    ```""").format(task=result.task, config=config)
