"""DP-FedAvg of TensorFlow Federated by the authors' released code.

That is the folder `one_shot_epe` of google-research/federated, here with one canary among
the clients and one beside them, the fewest it can have. Two clients train at once.
"""

import driver
import numpy as np
from one_shot_epe import canary_insertion, fed_avg_with_canaries
import tensorflow as tf
import tensorflow_federated as tff
import works as works_lib

AT_ONCE = 2


def start(work: works_lib.Work) -> driver.Round:
  """One round is one call of `next` of the authors' process."""
  clients = len(work.sizes)
  aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
    noise_multiplier=work.noise_multiplier,
    clients_per_round=float(clients),
    clip=works_lib.CLIP_NORM,
  )
  sgd = tf.keras.optimizers.legacy.SGD
  client_opt = lambda: sgd(work.learning_rate)
  server_opt = lambda: sgd(
    works_lib.SERVER_LEARNING_RATE, momentum=works_lib.SERVER_MOMENTUM
  )
  ids = [str(i) for i in range(clients)]
  data = tff.simulation.datasets.ClientData.from_clients_and_tf_fn(
    ids, _rows_of_client(work)
  )

  def model_fn() -> tff.learning.models.VariableModel:
    return tff.learning.models.from_keras_model(
      _keras_model(work.model),
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      _batched(_rows_of_client(work)('0')).element_spec,
    )

  with_canaries = canary_insertion.add_canaries(data, 1)

  @tff.tf_computation(tf.string)
  def batches(client_id):
    return _batched(with_canaries.dataset_computation(client_id))

  process = fed_avg_with_canaries.build_canary_learning_process(
    model_fn=model_fn,
    dataset_computation=batches,
    canary_seed=0,
    num_canaries=1,
    num_unseen_canaries=1,
    update_aggregator_factory=aggregator,
    client_optimizer_fn=client_opt,
    server_optimizer_fn=server_opt,
  )
  now = {'state': process.initialize()}

  def run() -> tuple[int, int]:
    output = process.next(now['state'], with_canaries.client_ids)
    now['state'] = output.state
    steps = int(output.metrics['client_work']['train']['num_batches'])
    return steps, work.examples

  return driver.Round(
    run=run,
    weights=lambda: now['state'].global_model_weights.trainable,
    form=f"the authors' code, 1 + 1 canaries, {AT_ONCE} at once",
  )


def _rows_of_client(work: works_lib.Work):
  """Client id -> its examples, one by one, sliced from arrays in memory."""
  xs, ys = zip(*works_lib.data(work))
  offsets = np.cumsum([0, *work.sizes]).astype(np.int32)
  x, y = np.concatenate(xs), np.concatenate(ys)
  if work.model == 'cnn':
    x = x[..., None]
  else:
    x, y = x.astype(np.int64), y.astype(np.int64)

  def rows(client_id):
    i = tf.strings.to_number(client_id, tf.int32)
    own = slice(tf.gather(offsets, i), tf.gather(offsets, i + 1))
    return tf.data.Dataset.from_tensor_slices(
      (tf.constant(x)[own], tf.constant(y)[own])
    )

  return rows


def _batched(data: tf.data.Dataset) -> tf.data.Dataset:
  return data.batch(works_lib.BATCH)


def _keras_model(name: str) -> tf.keras.Model:
  layers = tf.keras.layers
  if name == 'cnn':
    return tf.keras.Sequential(
      [
        layers.Input((28, 28, 1)),
        layers.Conv2D(32, 3, activation='relu'),
        layers.Conv2D(64, 3, activation='relu'),
        layers.MaxPool2D(2),
        layers.Dropout(0.25),
        layers.Flatten(),
        layers.Dense(128, activation='relu'),
        layers.Dropout(0.5),
        layers.Dense(works_lib.CLASSES),
      ]
    )
  ids = works_lib.WORDS + 4
  # Sentences are full: without the mask of TFF's own model this one is faster.
  return tf.keras.Sequential(
    [
      layers.Input((works_lib.MAX_WORDS,)),
      layers.Embedding(ids, 96),
      layers.LSTM(670, return_sequences=True),
      layers.Dense(96),
      layers.Dense(ids),
    ]
  )


if __name__ == '__main__':
  tff.backends.native.set_sync_local_cpp_execution_context(
    max_concurrent_computation_calls=AT_ONCE
  )
  driver.serve(start, 'tensorflow-federated', 'tensorflow')
