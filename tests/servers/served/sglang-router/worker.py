"""A worker of SGLang's router: each answer takes a second and no processor, as with an accelerator."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"{}")

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(1)
        self.answer(b'{"text": "b"}')

    def answer(self, body):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("0.0.0.0", 30001), Handler).serve_forever()
