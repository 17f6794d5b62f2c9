"""The plug-in that SGLang finds by its entry point group `sglang.srt.plugins`, in every worker: `--attention-backend draftwood`."""
from __future__ import annotations

from typing import Any

from ..errors import DraftwoodError
from .common import VerifyMode, warn_once

NAME = "draftwood"


def register() -> None:
    """Makes the backend known to SGLang's registry and its command line. Its draft workers go on with Triton's."""
    from sglang.srt.arg_groups.choices import add_attention_backend_choices, add_deterministic_attention_backend_choices
    from sglang.srt.layers.attention.attention_registry import register_attention_backend
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_attention_backend(NAME)(create_backend)
    add_attention_backend_choices([NAME])
    add_deterministic_attention_backend_choices([NAME])
    HookRegistry.register("sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend", _draft_by_triton, HookType.BEFORE)


def _draft_by_triton(factory: Any, name: str, backends: dict[str, Any], *rest: Any, **more: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The draft model's own steps are no verify steps."""
    return (factory, name, {**backends, NAME: backends["triton"]} if "triton" in backends else backends, *rest), more


def create_backend(runner: Any) -> Any:
    """SGLang's Triton backend, with TARGET_VERIFY and decode by draftwood where that can be. Raises BadArgument for a value of
    $DRAFTWOOD_VERIFY that there is not."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    mode = VerifyMode.of_environment()
    if mode == VerifyMode.OFF:
        return TritonAttnBackend(runner)
    from .sglang_backend import DraftwoodAttnBackend

    reason = DraftwoodAttnBackend.why_not(runner)
    if reason is None:
        try:
            return DraftwoodAttnBackend(runner, mode)
        except (DraftwoodError, OSError) as error:
            reason = str(error)
    warn_once("SGLang", reason)
    return TritonAttnBackend(runner)
