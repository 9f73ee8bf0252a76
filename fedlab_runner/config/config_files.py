"""Hydra's config files, looked at before they are loaded: an experiment from elsewhere cannot hang a command."""

import os
from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from fedlab_runner.utils import untrusted
from fedlab_runner.utils.errors import UserError


class FileConfigSource(file_config_source.FileConfigSource):  # of this name, or Hydra refuses two for one scheme
    """The files of the package's own groups, of `--config-dir` and of `hydra.searchpath`."""

    def load_config(self, config_path: str) -> ConfigResult:
        """The config in a file. Raises UserError where the file is too large, too deep, or has too many aliases."""
        path = Path(os.path.realpath(os.path.join(self.path, self._normalize_file_name(config_path))))
        try:
            untrusted.check_yaml(untrusted.read_bytes(path, untrusted.MAX_YAML_BYTES))
        except FileNotFoundError:
            pass  # Hydra says so
        except untrusted.Unreadable as fault:
            if str(fault) != untrusted.NOT_YAML:  # Hydra says where
                raise UserError(f"{path} {fault}: it is not loaded") from None
        return super().load_config(config_path)


def register() -> None:
    """From now on Hydra reads files through this."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
