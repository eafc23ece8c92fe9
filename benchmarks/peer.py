"""The peer: llama.cpp through its low-level API, doing the same work with the same tokens.

Runs in a process of its own (`PeerProcess`), so that its threads and ours never share a runtime. Knows nothing of
Sojourn. Times are taken around the calls that a C++ program would make too: batch, decode, sample.
"""

import ctypes
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import llama_cpp.llama_cpp as api

CHUNK = 2048  # n_batch: tokens handed over per llama_decode


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """One way to run llama.cpp; the benchmark picks the fastest for each row."""

    weights: str
    flash_attention: bool
    ubatch: int = 512
    unified: bool = True
    context: int = 1024
    sequences: int = 1

    def __str__(self) -> str:
        flash = "flash" if self.flash_attention else "no flash"
        kv = "" if self.sequences == 1 else (", unified KV" if self.unified else ", KV per sequence")
        return f"{self.weights}, {flash}, ubatch {self.ubatch}{kv}"


@api.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(level: int, text: bytes, user_data: ctypes.c_void_p) -> None:
    """Keeps llama.cpp's log out of the table."""


def requantize(source: Path, target: Path) -> None:
    """Write the Q4_0 form of `source`, which llama.cpp repacks for this CPU at load."""
    api.llama_log_set(_quiet, ctypes.c_void_p(0))
    params = api.llama_model_quantize_default_params()
    params.ftype = api.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    params.nthread = 2
    partial = target.with_suffix(".partial")
    if api.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params)) != 0:
        raise RuntimeError(f"llama.cpp could not quantise {source}")
    partial.rename(target)


class Peer:
    """One model, one context, `sequences` sequences. Lengths are what the KV cache holds."""

    def __init__(self, models: dict[str, str], config: PeerConfig) -> None:
        api.llama_log_set(_quiet, ctypes.c_void_p(0))
        api.llama_backend_init()
        model_params = api.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model_params.use_extra_bufts = True
        self._model = api.llama_model_load_from_file(models[config.weights].encode(), model_params)
        params = api.llama_context_default_params()
        params.n_ctx = config.context
        params.n_batch = CHUNK
        params.n_ubatch = config.ubatch
        params.n_seq_max = config.sequences
        params.n_threads = params.n_threads_batch = 2
        params.kv_unified = config.unified
        flash = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if config.flash_attention else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.flash_attn_type = flash
        self._context = api.llama_init_from_model(self._model, params)
        if self._context is None:
            raise RuntimeError(f"llama.cpp refused the context {config}")
        self._memory = api.llama_get_memory(self._context)
        self._batch = api.llama_batch_init(CHUNK, 0, 1)
        self._lengths = [0] * config.sequences
        self._samplers = [self._sampler(seed) for seed in range(config.sequences)]

    @staticmethod
    def _sampler(seed: int) -> object:
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_k(40))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_top_p(0.95, 1))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(0.8))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(seed))
        return chain

    def _decode(self, rows: Sequence[tuple[int, int, int, bool]]) -> None:
        """One llama_decode over rows of (token, sequence, position, wants logits)."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, sequence, position, wanted) in enumerate(rows):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = wanted
        if api.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")

    def cut(self, sequence: int, length: int) -> None:
        """Forget what lies past `length`."""
        api.llama_memory_seq_rm(self._memory, sequence, length, -1)
        self._lengths[sequence] = length

    def append(self, sequence: int, tokens: Sequence[int]) -> tuple[float, int]:
        """Compute `tokens` and sample the next one; seconds and that token."""
        begin = time.perf_counter()
        start = self._lengths[sequence]
        for at in range(0, len(tokens), CHUNK):
            part = tokens[at : at + CHUNK]
            last = len(tokens) - at - 1
            self._decode([(token, sequence, start + at + i, i == last) for i, token in enumerate(part)])
        token = api.llama_sampler_sample(self._samplers[sequence], self._context, -1)
        self._lengths[sequence] += len(tokens)
        return time.perf_counter() - begin, token

    def decode(self, firsts: Sequence[int], steps: int) -> float:
        """`steps` tokens for each of the first len(firsts) sequences, one step for all at a time; seconds."""
        begin = time.perf_counter()
        tokens = list(firsts)
        for _ in range(steps):
            self._decode([(token, i, self._lengths[i], True) for i, token in enumerate(tokens)])
            for i in range(len(tokens)):
                tokens[i] = api.llama_sampler_sample(self._samplers[i], self._context, i)
                self._lengths[i] += 1
        return time.perf_counter() - begin

    def close(self) -> None:
        for chain in self._samplers:
            api.llama_sampler_free(chain)
        api.llama_batch_free(self._batch)
        api.llama_free(self._context)
        api.llama_model_free(self._model)


def _serve(connection: Connection, models: dict[str, str]) -> None:
    """Answer calls by name on peers kept by configuration, until told to stop."""
    peers: dict[PeerConfig, Peer] = {}
    while (message := connection.recv()) is not None:
        config, name, arguments = message
        if config not in peers:
            peers[config] = Peer(models, config)
        answer = (0.0, 0)
        match name:
            case "append":
                answer = peers[config].append(*arguments)
            case "decode":
                answer = (peers[config].decode(*arguments), 0)
            case "cut":
                peers[config].cut(*arguments)
            case "release":
                peers.pop(config).close()
        connection.send(answer)


class PeerProcess:
    """The peer behind a pipe. Between calls it waits in `recv`: its threads sleep."""

    def __init__(self, models: dict[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, models), daemon=True)
        self._process.start()
        theirs.close()

    def _call(self, config: PeerConfig, name: str, *arguments: object) -> tuple[float, int]:
        self._connection.send((config, name, arguments))
        answer: tuple[float, int] = self._connection.recv()
        return answer

    def append(self, config: PeerConfig, sequence: int, tokens: Sequence[int]) -> float:
        return self._call(config, "append", sequence, list(tokens))[0]

    def decode(self, config: PeerConfig, firsts: Sequence[int], steps: int) -> float:
        return self._call(config, "decode", list(firsts), steps)[0]

    def cut(self, config: PeerConfig, sequence: int, length: int) -> None:
        self._call(config, "cut", sequence, length)

    def release(self, config: PeerConfig) -> None:
        self._call(config, "release")

    def stop(self) -> None:
        self._connection.send(None)
        self._process.join()
