"""Whether a server answers, asked beside the run: without a network that takes anything from no time to a minute."""

import ssl
import threading
import time
import urllib.error
import urllib.request

REQUEST_TIMEOUT_SECONDS, RETRY_SECONDS = 10.0, 2.0


class Reach:
    """Asks a server until it answers, whatever it answers, or nobody wants to know any more."""

    def __init__(self, url: str) -> None:
        self._url, self._began = url, time.monotonic()
        self._answered, self._stopped = threading.Event(), threading.Event()
        self._known = threading.Event()  # it has answered, or has failed to at least once
        self.reason = "it does not answer"  # not
        threading.Thread(target=self._ask, name="W&B's server", daemon=True).start()

    @property
    def seconds(self) -> float:
        """Since it was asked first."""
        return time.monotonic() - self._began

    def answers(self, seconds: float = 0.0) -> bool:
        """Whether the server has answered; up to so many seconds since the first question are waited for the first
        answer or failure.
        """
        self._known.wait(max(0.0, seconds - self.seconds))
        return self._answered.is_set()

    def stop(self) -> None:
        """Asks no more."""
        self._stopped.set()

    def _ask(self) -> None:
        while not self._stopped.is_set() and not self._answered.is_set():
            try:
                urllib.request.urlopen(self._url, timeout=REQUEST_TIMEOUT_SECONDS).close()
                self._answered.set()
            except Exception as error:  # whatever a network does
                self.reason = str(getattr(error, "reason", error))
                # Somebody is there: W&B itself has other certificates, and other questions.
                if isinstance(error, urllib.error.HTTPError) or isinstance(
                    getattr(error, "reason", None), ssl.SSLError
                ):
                    self._answered.set()
            self._known.set()
            if not self._answered.is_set():
                self._stopped.wait(RETRY_SECONDS)
