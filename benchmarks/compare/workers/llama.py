"""llama.cpp, by the C API that llama-cpp-python carries: no Python of that package is on the path of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.compare.workers.protocol import Worker, main, timed

__all__ = ["Llama"]

# Settings of a context, with llama.cpp's defaults: rows of one graph, flash attention (-1: it decides), one KV buffer for all sequences.
_TUNABLE = {"ubatch": 512, "flash_attention": -1, "kv_unified": True}


class Llama(Worker):
    """One model; a context of the needed size for each request."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._silence = llama_cpp.llama_log_callback(lambda *_: None)
        if not config.get("verbose"):
            llama_cpp.llama_log_set(self._silence, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.use_extra_bufts = config.get("repack", True)
        self.model = llama_cpp.llama_model_load_from_file(config["model"].encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {config['model']}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context: Any = None
        self.batch_of: Any = None
        self.shape: tuple[Any, ...] = ()

    def _open(self, tokens: int, sequences: int = 1) -> None:
        """A clean context for `tokens` in all, and as many rows in a step as `tokens` or 2048."""
        tuned = tuple(self.config.get(name, default) for name, default in _TUNABLE.items())
        shape = (-(-tokens // 256) * 256, sequences, min(2048, max(512, tokens)), *tuned)
        if shape != self.shape:
            if self.context is not None:
                llama_cpp.llama_batch_free(self.batch_of)
                llama_cpp.llama_free(self.context)
            params = llama_cpp.llama_context_default_params()
            params.n_ctx, params.n_seq_max, params.n_batch = shape[:3]
            params.n_ubatch = min(shape[2], tuned[0])
            params.n_threads = params.n_threads_batch = self.config["threads"]
            params.flash_attn_type = tuned[1]
            params.kv_unified = tuned[2]
            params.no_perf = True
            self.context = llama_cpp.llama_init_from_model(self.model, params)
            if not self.context:
                raise RuntimeError(f"llama.cpp cannot make a context of {tokens} tokens")
            self.batch_of = llama_cpp.llama_batch_init(shape[2], 0, 1)
            self.shape = shape
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)

    def _run(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int], wanted: Sequence[bool]) -> None:
        batch = self.batch_of
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, positions[i]
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, sequences[i], wanted[i]
        code = llama_cpp.llama_decode(self.context, batch)
        if code:
            raise RuntimeError(f"llama_decode gave {code}")

    def _row(self, index: int) -> Any:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, index), (self.vocabulary,))

    def _prompt(self, ids: Sequence[int], sequence: int = 0) -> int:
        most = self.shape[2]
        for start in range(0, len(ids), most):
            part = ids[start : start + most]
            last = start + len(part) == len(ids)
            self._run(part, range(start, start + len(part)), [sequence] * len(part), [False] * (len(part) - 1) + [last])
        return int(self._row(len(part) - 1).argmax())

    def first(self, ids: Sequence[int]) -> int:
        self._open(len(ids) + 8)
        return self._prompt(ids)

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        self._open(len(ids) + steps + 8)
        state = [self._prompt(ids), len(ids)]

        def step() -> None:
            self._run([state[0]], [state[1]], [0], [True])
            state[:] = [int(self._row(0).argmax()), state[1] + 1]

        return timed(steps, step)

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        self._open(sum(map(len, prompts)) + len(prompts) * (steps + 8), len(prompts))
        state = [[self._prompt(ids, number), len(ids)] for number, ids in enumerate(prompts)]

        def step() -> None:
            self._run([token for token, _ in state], [at for _, at in state], range(len(state)), [True] * len(state))
            for number in range(len(state)):
                state[number] = [int(self._row(number).argmax()), state[number][1] + 1]

        return timed(steps, step)

    def logits(self, ids: Sequence[int]) -> Any:
        self._open(len(ids) + 8)
        self._run(ids, range(len(ids)), [0] * len(ids), [True] * len(ids))
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (len(ids), self.vocabulary))

    def facts(self) -> Mapping[str, Any]:
        return {"version": f"llama-cpp-python {llama_cpp.__version__}", "system": llama_cpp.llama_print_system_info().decode()}


if __name__ == "__main__":
    main(Llama)
