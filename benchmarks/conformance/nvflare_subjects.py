"""NVFlare's filters of what one client sends, in an environment with NVFlare."""

import logging
import math

import numpy as np
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy
from nvflare.app_common.filters.svt_privacy import SVTPrivacy

from benchmarks.conformance import subject
from epe_jax.conformance import Claim, Refused

logging.disable(logging.INFO)


class Filter:
  """A filter that is given the update of a client."""

  def __init__(self, dxo_filter: DXOFilter):
    self._filter = dxo_filter

  def aggregate(self, updates, weights):
    if len(updates) != 1:
      raise Refused('a message has the update of one client')
    update = {
      f'{i:03}': np.array(tensor) for i, tensor in enumerate(updates[0])
    }
    dxo = DXO(DataKind.WEIGHT_DIFF, data=update)
    sent = self._filter.process_dxo(dxo, Shareable(), FLContext()).data
    return [np.asarray(sent[key]) for key in sorted(sent)]


def make_svt(claim: Claim):
  """All numbers are sent, so that the selection, which has an ε of its own, tells none."""
  return Filter(
    SVTPrivacy(
      fraction=1.0,
      gamma=claim.clip_norm,
      replace=False,
      epsilon_release=claim.epsilon,
    )
  )


def make_percentile(claim: Claim):
  return Filter(PercentilePrivacy(gamma=claim.clip_norm))


def make_claim(**changes) -> Claim:
  """ε = 1 of what one client sends, clipped in the maximum norm."""
  given = {'clip_norm': 1.0, 'num_clients': 1, 'shapes': subject.SHAPES}
  given |= {'release': 'sum', 'norm': math.inf, 'adjacency': 'replace'}
  return Claim.from_epsilon(1.0, **(given | changes))


SUBJECTS = (
  subject.Subject(
    'SVTPrivacy',
    'nvflare',
    make_svt,
    make_claim(noise='laplace'),
    'The claim is `epsilon_release` of any two updates, with fraction=1 and without '
    'replacement. With less, random coordinates are zero, and little can be checked.',
  ),
  subject.Subject(
    'SVTPrivacy, a parameter without an axis',
    'nvflare',
    make_svt,
    make_claim(noise='laplace', shapes=(*subject.SHAPES, ())),
  ),
  subject.Subject(
    'PercentilePrivacy',
    'nvflare',
    make_percentile,
    make_claim(),
    'It claims no ε; here that of ε = 1.',
  ),
)
