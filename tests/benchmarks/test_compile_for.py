"""Programs compiled for devices that are not at hand, and what they cost."""

import json

import jax
import jax.numpy as jnp
import pytest

from benchmarks.speed import compiled_costs

N = 64


def count(function, *shapes, steps):
  shapes = [jax.ShapeDtypeStruct(x, jnp.float32) for x in shapes]
  text = jax.jit(function).lower(*shapes).compile().as_text()
  return compiled_costs.count_costs(text, steps=steps)


def test_what_a_loop_computes_counts_as_often_as_it_turns():
  def twice_in_five(x, until):
    def turn(i, y):
      return jax.lax.fori_loop(0, 2, lambda j, z: jnp.sin(z @ x), y)

    y = jax.lax.fori_loop(0, 5, turn, x)
    # How often this one turns follows from numbers.
    return jax.lax.while_loop(
      lambda y: y[0, 0] < until, lambda y: jnp.cos(y @ x), y
    )

  product = 2 * N**3
  costs = count(twice_in_five, (N, N), (), steps=3.0)
  assert costs.flops == pytest.approx(13 * product, rel=0.02)
  assert costs.bytes_accessed > 13 * 3 * 4 * N * N
  assert costs.collectives == {}


def test_of_loops_whose_turns_follow_from_numbers_the_second_takes_all_steps():
  def until(least, step):
    return lambda y: jax.lax.while_loop(lambda y: y[0, 0] < least, step, y)

  def nested(x, most):
    negligible = until(most / 4, lambda y: y + 1)
    batches = until(most / 2, lambda y: negligible(jnp.cos(y @ x)))
    return until(most, batches)(x)

  costs = count(nested, (N, N), (), steps=7.0)
  assert costs.flops == pytest.approx(7 * 2 * N**3, rel=0.05)


HLO = """HloModule any

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,4]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[8,4]{1,0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%sum
  ROOT %z = f32[8,4]{1,0} all-reduce(%y), replica_groups={{0,1}}, to_apply=%sum
}
"""


def test_collectives_are_counted_with_what_they_send():
  costs = compiled_costs.count_costs(HLO, steps=1.0)
  assert costs.collectives == {'all-reduce': (2, 2 * 8 * 4 * 4)}


def test_each_kind_of_noise_game_and_config_is_among_the_programs(
  load_benchmark,
):
  made = load_benchmark('speed.compile_for').list_programs(
    ['v5e:2x4', 'v6e:2x2']
  )
  assert len(made) == len({x.name for x in made})
  first = made[:4]
  assert {x.job for x in first[:2]} == {'emnist', 'stackoverflow'}
  assert all(x.topology == 'v5e:2x4' for x in first[:2])
  variants = {x.variant for x in made}
  assert variants > {
    'exact noise',
    'secure aggregation',
    'tree',
    'banded',
    'blt',
  }
  assert {x.devices for x in made} == {1, 4, 8}
  assert any(x.job.startswith('game') for x in made)


def test_a_topology_that_nobody_has_is_refused_with_those_there_are(
  load_benchmark,
):
  compile_for = load_benchmark('speed.compile_for')
  with pytest.raises(ValueError, match=r"topology='v5e'.*v5e:2x4"):
    compile_for.list_programs(['v5e'])


def test_what_lacks_figures_or_room_in_a_run_is_compiled_again(
  load_benchmark, tmp_path
):
  compile_for = load_benchmark('speed.compile_for')
  made = compile_for.list_programs(['v5e:2x2'], quick=True)
  row = {'status': 'compiled', 'memory_bytes': 7, 'cohort_bytes': 1, 'flops': 6}
  row |= {'limit_bytes': 10, 'paper_flops': 4}
  wrong = (
    {'flops': None},
    {'limit_bytes': 9},
    {'status': 'fails', 'flops': None},
  )
  rows = {x.name: {**row, **y} for x, y in zip(made, [{}, *wrong])}
  path = tmp_path / 'compiled.json'
  path.write_text(json.dumps({'programs': rows}))
  called = []

  def call(function, *fields, timeout):
    called.append(compile_for.Program(*fields))
    return row

  done = compile_for.compile_missing(made, path, call=call)
  assert called == made[1:]
  for x in done.values():
    assert x == {**row, 'needed_bytes': 10, 'over_paper': 1.5}


@pytest.mark.integration
@pytest.mark.parametrize('topology', ['v5e:2x2', 'h100:1x8'])
def test_programs_compile_for_devices_that_are_not_at_hand_and_only_once(
  topology, load_benchmark, tmp_path
):
  compile_for = load_benchmark('speed.compile_for')
  if missing := compile_for.explain_missing(topology):
    pytest.skip(missing)
  path = tmp_path / 'compiled.json'
  made = compile_for.list_programs([topology], quick=True)
  done = compile_for.compile_missing(made, path)
  record = json.loads(path.read_text())
  assert {*done} == {x.name for x in made} == {*record['programs']}
  assert record['compiled'] == record['of'] == len(made)
  for name, row in done.items():
    assert row['status'] == 'compiled', (name, row)
    assert 0 < row['memory_bytes'] < row['limit_bytes']
    assert row['flops'] > 0
  several = next(x for x in made if x.devices > 1)
  assert done[several.name]['bytes_sent'] > 0
  assert compile_for.compile_missing(made, path, call=None) == done
