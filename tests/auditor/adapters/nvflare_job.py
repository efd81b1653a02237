"""A job of NVFlare whose sites send zeros, for its simulator: components by name."""

import json
import pathlib
import shutil

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.executor import Executor

CLIP_NORM = 2.0
SHAPE = (100, 100)


class ZeroTrainer(Executor):
  """Sends an update of zeros, of one step."""

  def execute(self, task_name, shareable, fl_ctx, abort_signal):
    update = {'numpy_key': np.zeros(SHAPE, np.float32)}
    meta = {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}
    return DXO(DataKind.WEIGHT_DIFF, update, meta).to_shareable()


class GaussianNoise(DXOFilter):
  """The share of a site in the noise of all; updates are clipped already."""

  def __init__(self, noise_multiplier, sites):
    super().__init__([DataKind.WEIGHT_DIFF], [DataKind.WEIGHT_DIFF])
    self._std = noise_multiplier * CLIP_NORM / np.sqrt(sites)
    self._rng = np.random.default_rng()

  def process_dxo(self, dxo, shareable, fl_ctx):
    for name, x in dxo.data.items():
      dxo.data[name] = x + self._rng.normal(0, self._std, x.shape)
    return dxo


def write_job(folder, auditor_path, *, sites, rounds, noise_multiplier):
  """Writes a job in which each of some sites is designated for canaries."""
  server = {
    'format_version': 2,
    'task_data_filters': [],
    'task_result_filters': [],
    'workflows': [
      {
        'id': 'scatter_and_gather',
        'path': 'nvflare.app_common.workflows.scatter_and_gather.ScatterAndGather',
        'args': {
          'min_clients': sites,
          'num_rounds': rounds,
          'wait_time_after_min_received': 0,
          'task_check_period': 0.05,
          'aggregator_id': 'aggregator',
          'persistor_id': 'persistor',
          'shareable_generator_id': 'shareable_generator',
        },
      }
    ],
    'components': [
      {
        'id': 'persistor',
        'path': 'nvflare.app_common.np.np_model_persistor.NPModelPersistor',
        'args': {'model': np.zeros(SHAPE).tolist()},
      },
      {
        'id': 'shareable_generator',
        'path': 'nvflare.app_common.shareablegenerators.'
        'full_model_shareable_generator.FullModelShareableGenerator',
        'args': {},
      },
      {
        'id': 'aggregator',
        'path': 'epe_jax.auditor.adapters.nvflare.AuditedAggregator',
        'args': {
          'auditor': str(auditor_path),
          'aggregator': {
            'path': 'nvflare.app_common.aggregators.'
            'intime_accumulate_model_aggregator.InTimeAccumulateWeightedAggregator',
            'args': {'expected_data_kind': 'WEIGHT_DIFF'},
          },
        },
      },
    ],
  }
  apps = {'app_server': ['server']}
  _write_json(folder / 'app_server/config/config_fed_server.json', server)
  for site in range(sites):
    filters = [
      {
        'path': 'epe_jax.auditor.adapters.nvflare.CanaryFilter',
        'args': {'auditor': str(auditor_path), 'site': site},
      },
      {
        'path': 'nvflare_job.GaussianNoise',
        'args': {'noise_multiplier': noise_multiplier, 'sites': sites},
      },
    ]
    client = {
      'format_version': 2,
      'executors': [
        {
          'tasks': ['train'],
          'executor': {
            'path': 'nvflare_job.ZeroTrainer',
            'args': {},
          },
        }
      ],
      'task_data_filters': [],
      'task_result_filters': [{'tasks': ['train'], 'filters': filters}],
      'components': [],
    }
    app = f'app_{site}'
    apps[app] = [f'site-{site + 1}']
    _write_json(folder / app / 'config/config_fed_client.json', client)
  meta = {
    'name': 'audited',
    'resource_spec': {},
    'min_clients': sites,
    'deploy_map': apps,
  }
  _write_json(folder / 'meta.json', meta)
  # Classes that are not NVFlare's own are built for jobs that bring code only.
  for app in apps:
    (folder / app / 'custom').mkdir()
    shutil.copy(__file__, folder / app / 'custom' / 'nvflare_job.py')


def _write_json(path: pathlib.Path, value) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(value), encoding='utf-8')
