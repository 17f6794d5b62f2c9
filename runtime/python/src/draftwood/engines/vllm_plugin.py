"""The plug-in that vLLM finds by its entry point group `vllm.general_plugins`, in every process: `--attention-backend CUSTOM`."""
from __future__ import annotations

BACKEND = "draftwood.engines.vllm_backend.DraftwoodMLABackend"


def register() -> None:
    """Makes the backend known to vLLM's registry, which imports it when a model asks for it. May be called again."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
