"""Who may see a page: whoever is on this machine; from elsewhere, whoever knows the token.

On loopback a request must name a loopback host: a stranger's site, whose name leads here for a moment (DNS rebinding),
cannot read the page with the browser of somebody who visits it. With a token the host does not matter: cookies belong
to a host. The token is given once, as `?token=…`, and becomes a cookie that scripts cannot read.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

from pappus.config import PageConfig


@dataclass(frozen=True)
class Access:
    """Judges requests. `name` is that of the cookie: cookies of several servers on one host must not meet."""

    token: str
    name: str

    def refusal(self, headers: Mapping[str, str]) -> str:
        """Why a request without a token gets no answer; empty where it may have one. Headers by lower-case name."""
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return "this page is not for other sites"
        if not self.token:
            host = headers.get("host", "")
            return "" if is_loopback(host) else f"this page is for this machine only, not for {host!r:.80}"
        given, proof = cookies(headers.get("cookie", ""), self.name), self.proof.encode()
        if any(hmac.compare_digest(value.encode(errors="replace"), proof) for value in given):
            return ""
        return "this page needs its token: open the address with ?token=… once"

    def accepts(self, token: str) -> bool:
        return bool(self.token) and hmac.compare_digest(token.encode(errors="replace"), self.token.encode())

    @property
    def proof(self) -> str:
        """The cookie of who gave the token."""
        return hmac.new(self.token.encode(), b"cookie of a page", hashlib.sha256).hexdigest()

    def cookie(self, secure: bool) -> str:
        """The header that sets it."""
        return f"{self.name}={self.proof}; Path=/; HttpOnly; SameSite=Strict{'; Secure' * secure}"


def cookies(header: str, name: str) -> list[str]:
    """The values of cookies of that name. Those of other programs on the host come along, and may be odd."""
    pairs = [part.strip().partition("=") for part in header.split(";")]
    return [value for found, _, value in pairs if found == name]


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine from within, whatever the port: it may be forwarded."""
    name = host[1 : host.find("]")] if host.startswith("[") else host.rpartition(":")[0] or host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def tls_of(config: PageConfig) -> ssl.SSLContext | None:
    """TLS for the server, where a certificate is given."""
    if not config.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key, password="")
    return context
