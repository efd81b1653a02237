"""A server of one file on this machine, with the faults that servers have."""

from collections.abc import Iterator
import contextlib
import http.server
import os
import threading
from types import SimpleNamespace
from unittest import mock


def without_proxies():
  """A context in which requests go where they are addressed to."""
  return mock.patch.dict(os.environ, no_proxy='*')


@contextlib.contextmanager
def served(files, **faults) -> Iterator[SimpleNamespace]:
  """Serves files: name -> bytes.

  Yields:
    url: where; asked: the names of requests so far.
    The faults may be changed at any time: `cuts` (after how many bytes the
    connection ends, a list used up by requests), `headers` (more of them), `status`.
  """
  state = SimpleNamespace(
    files=files, asked=[], cuts=[], headers={}, status=None, url=''
  )
  vars(state).update(faults)

  class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
      pass

    def do_GET(self):
      _answer(self, state)

  with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    state.url = f'http://127.0.0.1:{server.server_address[1]}'
    try:
      with without_proxies():
        yield state
    finally:
      server.shutdown()
      thread.join()


def _answer(handler, state):
  name = handler.path.removeprefix('/')
  state.asked.append(name)
  if name not in state.files or state.status:
    handler.send_error(state.status or 404)
    return
  data = state.files[name]
  handler.send_response(200)
  headers = {'Content-Length': str(len(data))} | state.headers
  for key, value in headers.items():
    handler.send_header(key, value)
  handler.end_headers()
  handler.wfile.write(data[: state.cuts.pop(0) if state.cuts else None])
  handler.close_connection = True
