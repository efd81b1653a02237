"""Files: written atomically, made once, and read without trust."""

from epe_jax.io.arrays import (
  list_arrays,
  machine_memory,
  read_array,
  read_arrays,
  write_arrays,
)
from epe_jax.io.files import (
  check_folder,
  check_schema,
  explain_disk_errors,
  hash_file,
  open_private,
  read_last_lines,
  user_cache,
  write_atomically,
  write_text,
)
from epe_jax.io.json_values import (
  flatten,
  format_json,
  hide_paths,
  join_lines,
  parse_json,
  read_fields,
  read_json,
  read_sealed,
  spell_non_finite,
  write_json,
  write_sealed,
)
from epe_jax.io.locks import (
  make_once,
)

__all__ = [
  'check_folder',
  'check_schema',
  'explain_disk_errors',
  'flatten',
  'format_json',
  'hash_file',
  'hide_paths',
  'join_lines',
  'list_arrays',
  'machine_memory',
  'make_once',
  'open_private',
  'parse_json',
  'read_array',
  'read_arrays',
  'read_fields',
  'read_json',
  'read_last_lines',
  'read_sealed',
  'spell_non_finite',
  'user_cache',
  'write_arrays',
  'write_atomically',
  'write_json',
  'write_sealed',
  'write_text',
]
