"""Launcher of multiruns, `hydra/launcher=process`, where Hydra looks for plugins: it takes no class from elsewhere."""

from txl_lightning import launcher


class ProcessLauncher(launcher.ProcessLauncher):
    """Launcher that runs each job in a process group of its own."""
