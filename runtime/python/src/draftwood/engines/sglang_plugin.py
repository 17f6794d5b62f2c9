"""The plug-in that SGLang finds by its entry point group `sglang.srt.plugins`, in every worker: `--attention-backend draftwood`."""
from __future__ import annotations

from typing import Any

from ..errors import DraftwoodError, bad_argument
from .common import SWITCH, VerifyMode, warn_once

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


def _is_rank_of_several() -> bool:
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().attn_dcp_size > 1)


def _merge_ranks() -> None:
    """Models merge the ranks around backends that are in this list; their log-sum-exp is taken for base 2."""
    from sglang.srt.models.deepseek_common.utils import FORWARD_ABSORB_CORE_ATTENTION_BACKENDS as backends

    if NAME not in backends:
        backends.append(NAME)


def create_backend(runner: Any) -> Any:
    """SGLang's Triton backend, with TARGET_VERIFY and decode by draftwood where that can be. Raises BadArgument for a value of
    $DRAFTWOOD_VERIFY that there is not, or for shadow under decode context parallelism."""
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    mode = VerifyMode.of_environment()
    if mode == VerifyMode.OFF:
        return TritonAttnBackend(runner)
    from .sglang_backend import DraftwoodAttnBackend

    reason = DraftwoodAttnBackend.why_not(runner)
    if reason is None and _is_rank_of_several():
        if mode == VerifyMode.SHADOW:
            raise bad_argument(SWITCH, mode.value, "on, off: under decode context parallelism SGLang has no other kernel to compare with")
        _merge_ranks()
    if reason is None:
        try:
            return DraftwoodAttnBackend(runner, mode)
        except (DraftwoodError, OSError) as error:
            reason = str(error)
    warn_once("SGLang", reason)
    return TritonAttnBackend(runner)
