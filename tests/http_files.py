"""A server of one file on this machine, with the faults that servers have."""

from collections.abc import Iterator
import contextlib
import http.server
import os
import re
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
    url: where; asked: the (name, Range header or None) of requests so far.
    The faults may be changed at any time: `cuts` (after how many bytes the
    connection ends, a list used up by requests), `ranges` (False: ignored),
    `etag`, `headers` (more of them; None: not sent), `status`.
  """
  state = SimpleNamespace(
    files=files, asked=[], cuts=[], ranges=True, etag='"1"', headers={},
    status=None, url='',
  )  # fmt: skip
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
  asked = handler.headers['Range']
  state.asked.append((name, asked))
  if name not in state.files or state.status:
    handler.send_error(state.status or 404)
    return
  data, start = state.files[name], 0
  same = handler.headers['If-Range'] in (None, state.etag)
  if asked and state.ranges and same:
    start = int(re.fullmatch(r'bytes=(\d+)-', asked)[1])
    if start >= len(data):
      handler.send_error(416)
      return
  headers = {'ETag': state.etag, 'Content-Length': str(len(data) - start)}
  if start:
    headers['Content-Range'] = f'bytes {start}-{len(data) - 1}/{len(data)}'
  handler.send_response(206 if start else 200)
  for key, value in (headers | state.headers).items():
    if value is not None:
      handler.send_header(key, value)
  handler.end_headers()
  stop = start + state.cuts.pop(0) if state.cuts else len(data)
  handler.wfile.write(data[start:stop])
  handler.close_connection = True
