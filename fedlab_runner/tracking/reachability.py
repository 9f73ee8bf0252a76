"""Asks in a thread whether a server answers. Without a network that takes up to a minute."""

import ssl
import threading
import time
import urllib.error
import urllib.request

REQUEST_TIMEOUT_SECONDS, RETRY_SECONDS = 10.0, 2.0  # the limit of one request; the pause between two


class Reach:
    """Asks a server until it answers or until `stop` is called."""

    def __init__(self, url: str) -> None:
        self._url, self._began = url, time.monotonic()
        self._answered, self._stopped = threading.Event(), threading.Event()
        self._known = threading.Event()  # the first request has ended
        self.reason = "it does not answer"  # why the last request failed
        threading.Thread(target=self._ask, name="W&B's server", daemon=True).start()

    @property
    def seconds(self) -> float:
        """The seconds since the first request."""
        return time.monotonic() - self._began

    def answers(self, seconds: float = 0.0) -> bool:
        """Whether the server has answered; waits for the end of the first request, up to `seconds` after its start."""
        self._known.wait(max(0.0, seconds - self.seconds))
        return self._answered.is_set()

    def stop(self) -> None:
        """Sends no more requests."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.is_set() and not self._answered.is_set():
            try:
                urllib.request.urlopen(self._url, timeout=REQUEST_TIMEOUT_SECONDS).close()
                self._answered.set()
            except Exception as error:  # networks fail in many ways
                self.reason = str(getattr(error, "reason", error))
                # The server answers, which is enough: W&B itself has other certificates and sends other requests.
                if isinstance(error, urllib.error.HTTPError) or isinstance(
                    getattr(error, "reason", None), ssl.SSLError
                ):
                    self._answered.set()
            self._known.set()
            if not self._answered.is_set():
                self._stopped.wait(RETRY_SECONDS)
