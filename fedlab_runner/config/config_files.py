"""Checks each config file before Hydra loads it, so that a stranger's experiment cannot hang a command.

Within `registered`, and for good once `train` is imported, which calls `register`, Hydra reads every file of the
package's groups, of `--config-dir` and of `hydra.searchpath` through `FileConfigSource.load_config`, while it composes.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError

# Keyed by place, size and time of change: the jobs of a sweep read the same files. Pickled: Hydra changes what it gets,
# and a config is unpickled six times as fast as copied.
_read: dict[tuple[Any, ...], bytes] = {}


class FileConfigSource(file_config_source.FileConfigSource):  # Hydra refuses a second name for one scheme
    """Config files on disk."""

    def load_config(self, config_path: str) -> ConfigResult:
        """The config in a file; UserError where the file is too large, too deep, or has too many aliases."""
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        with suppress(OSError):
            now = path.stat()
            key = (self.provider, self.path, path, now.st_ino, now.st_size, now.st_mtime_ns)
            if key not in _read:
                _read[key] = pickle.dumps(self._checked(path, config_path))
            found: ConfigResult = pickle.loads(_read[key])
            return found
        return self._checked(path, config_path)

    def _checked(self, path: Path, config_path: str) -> ConfigResult:
        try:
            untrusted.check_yaml(untrusted.read_bytes(path, untrusted.MAX_YAML_BYTES))
        except FileNotFoundError:
            pass  # Hydra reports it
        except untrusted.Unreadable as fault:
            if str(fault) != untrusted.NOT_YAML:  # Hydra reports the line
                raise UserError(f"{path} {fault}: it is not loaded") from None
        return super().load_config(config_path)


def register() -> None:
    """Makes Hydra read config files through `FileConfigSource`."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource


@contextmanager
def registered() -> Iterator[None]:
    """Within the block Hydra reads config files through `FileConfigSource`."""
    types, scheme = SourcesRegistry.instance().types, FileConfigSource.scheme()
    before = types.get(scheme, file_config_source.FileConfigSource)  # Hydra registers its own when it starts
    register()
    try:
        yield
    finally:
        types[scheme] = before
