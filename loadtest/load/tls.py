"""TLS over the reader's plain socket: records are decrypted in memory, so the kernel's receive stamps stay usable."""

from __future__ import annotations

import functools
import ssl
from typing import Any

from gevent import socket as gsocket

_READ_BYTES = 65_536


@functools.cache
def _context() -> ssl.SSLContext:
    """Made once: loading the trusted certificates takes tens of milliseconds. SSL_CERT_FILE adds to them."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class TlsSocket:
    """Offers what the engine uses of a socket: `recvmsg`, `send`, `fileno`, `close`.

    A read carries the stamp of the TCP segment that completed its TLS record. Errors are OSErrors, as ssl.SSLError is.
    """

    def __init__(self, sock: Any, host: str, context: ssl.SSLContext | None = None) -> None:
        """Shakes hands, letting other greenlets run. Raises ssl.SSLError, OSError."""
        self._sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (context or _context()).wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                gsocket.wait_read(sock.fileno())
                data = sock.recv(_READ_BYTES)
                if not data:
                    raise ConnectionResetError("closed during the TLS handshake") from None
                self._incoming.write(data)
            else:
                self._flush()
                return

    def recvmsg(self, size: int, ancillary_size: int) -> tuple[bytes, list[Any], int, Any]:
        """Like socket.recvmsg, decrypted. Raises BlockingIOError while no record is complete."""
        data, ancillary, flags, address = self._sock.recvmsg(size, ancillary_size)
        if not data:
            return data, ancillary, flags, address
        self._incoming.write(data)
        plain = []
        while True:
            try:
                part = self._tls.read(_READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                part = b""
            if not part:  # close_notify: the end of the stream, once what came before it is delivered
                break
            plain.append(part)
        if self._outgoing.pending:
            self._flush()
        if not plain:
            raise BlockingIOError
        return b"".join(plain), ancillary, flags, address

    def send(self, data: memoryview) -> int:
        """Encrypts and sends everything, waiting where it must. -> len(data)."""
        self._tls.write(data)
        self._flush()
        return len(data)

    def _flush(self) -> None:
        view = memoryview(self._outgoing.read())
        while view:
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                gsocket.wait_write(self._sock.fileno())

    def fileno(self) -> int:
        """The socket's descriptor."""
        return int(self._sock.fileno())

    def close(self) -> None:
        """Closes without waiting for the other side."""
        self._sock.close()
