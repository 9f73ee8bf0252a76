"""Makes Hydra look for choices in installed packages that extend this one (`utils/plugin_folders.py`)."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from fedlab_runner.utils import plugin_folders


class PluginConfigs(SearchPathPlugin):
    """Hydra looks for choices in the registered packages too."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in plugin_folders.conf_dirs():
            search_path.append("plugin", f"file://{folder}")


def register() -> None:
    """From now on Hydra composes with the registered packages."""
    Plugins.instance().register(PluginConfigs)
