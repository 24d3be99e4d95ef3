"""A model of the Hugging Face hub, as a folder on this machine.

In: an id such as `Qwen/Qwen3-0.6B`. Out: its folder in the hub's own cache (`HF_HOME`), downloaded if it is not whole there. What
is cached is used as it is, without asking the hub: a run resumes on the weights it began with, and works without a network.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
_FOLDERS = ["*/*"]
"""Other formats of the same weights live in folders of the repository; the model itself does not."""


def hub_folder(name: str, whole: Callable[[Path], bool]) -> Path:
    """The folder of a hub id; `whole` says whether a cached one holds every part (a tokenizer alone may be there).

    Raises ValueError, in a sentence that says what to do, where it is not cached and cannot be downloaded.
    """
    try:
        cached = Path(snapshot_download(name, local_files_only=True, allow_patterns=_FILES, ignore_patterns=_FOLDERS))
    except LocalEntryNotFoundError:
        cached = None
    if cached is not None and whole(cached):
        return cached
    try:
        # Asked first: a download that cannot reach the hub falls back, without a word, to whatever part is cached.
        HfApi().model_info(name)
        return Path(snapshot_download(name, allow_patterns=_FILES, ignore_patterns=_FOLDERS))
    except GatedRepoError as error:
        raise ValueError(f"--base-model {name}: accept its owner's terms on the hub, then `hf auth login`") from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"--base-model {name}: neither a folder here nor a model the hub shows you; correct it, or `hf auth login` if private"
        ) from error
    except Exception as error:
        # Not narrower: which HTTP library's errors come through differs between releases of the hub's client.
        raise ValueError(
            f"--base-model {name}: no such folder, not whole in the hub's cache ({constants.HF_HUB_CACHE}), and the download "
            f"failed ({_sentence(error)}); run `hf download {name}` where there is a network, or name a model folder"
        ) from error


def _sentence(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
