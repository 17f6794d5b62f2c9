#!/usr/bin/env python3
"""Compiles the FlashInfer modules that peers.py uses into the installed package, so that nothing is compiled where it runs.

usage: FLASHINFER_CUDA_ARCH_LIST=9.0a bench/peers/prebuild_flashinfer.py [fa2 fa3 gqa128...]

fa2, fa3: of MLA; gqa128: FA2 for GQA with heads of 128, and what packs its masks. Without names: fa2, fa3 and gqa128.

Needs nvcc and no GPU. FlashInfer loads what lies in its folder data/aot without asking whether it is up to date: run this again
after the package has changed.
"""
import os
import shutil
import sys

import torch
from flashinfer.jit import env, gen_batch_mla_module, gen_batch_prefill_module
from flashinfer.jit.attention import modules
from flashinfer.jit.quantization import gen_quantization_module

V, ROPE = 512, 64  # as in peers.py

# What the wrapper of the paged prefill kernel asks for: in newer versions a module of its own, for K and V with the same strides.
prefill_module = getattr(modules, "_gen_batch_prefill_primary_module", gen_batch_prefill_module)


def specs(name):
    bf16 = torch.bfloat16
    if name.startswith("gqa"):
        size = int(name[len("gqa"):])
        return [prefill_module("fa2", bf16, bf16, bf16, torch.int32, size, size, 0, False, False, False), gen_quantization_module()]
    return [gen_batch_mla_module(name, bf16, bf16, bf16, torch.int32, V, ROPE, False)]


def main():
    if "FLASHINFER_CUDA_ARCH_LIST" not in os.environ and not torch.cuda.is_available():
        sys.exit("without a GPU, FLASHINFER_CUDA_ARCH_LIST has to name the target, for example 9.0a")
    for module in [spec for name in sys.argv[1:] or ("fa2", "fa3", "gqa128") for spec in specs(name)]:
        module.build(verbose=False)
        folder = env.FLASHINFER_AOT_DIR / module.name
        folder.mkdir(parents=True, exist_ok=True)
        print(shutil.copy(module.jit_library_path, folder))


if __name__ == "__main__":
    main()
