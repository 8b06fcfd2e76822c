"""OpenVINO GenAI: its pipeline for one sequence, its continuous batching for many; OpenVINO's core for the logits of a window."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.compare.workers.protocol import Worker, main, timed

__all__ = ["OpenVino"]


class OpenVino(Worker):
    """Each way of running is made on first use, so that a cold start pays for the pipeline alone."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self.settings = {"INFERENCE_NUM_THREADS": config["threads"], **config.get("settings", {})}
        self.pipelines: dict[str, Any] = {}
        self.batcher: Any = None
        self.core: Any = None

    def _generate(self, ids: Sequence[int], tokens: int) -> Any:
        backend = self.config.get("backend", "PA")
        if backend not in self.pipelines:
            chosen: dict[str, Any] = {"ATTENTION_BACKEND": backend}
            if backend == "PA":
                # Without this the second run of a prompt is free, and would be measured as such.
                chosen["scheduler_config"] = _scheduler()
            self.pipelines[backend] = openvino_genai.LLMPipeline(self.config["model"], "CPU", **chosen, **self.settings)
        wanted = _greedy(tokens)
        given = openvino.Tensor(np.asarray([ids], np.int64))
        mask = openvino.Tensor(np.ones((1, len(ids)), np.int64))
        inputs = openvino_genai.TokenizedInputs(given, mask)
        return self.pipelines[backend].generate(inputs, wanted)

    def first(self, ids: Sequence[int]) -> int:
        return int(self._generate(ids, 1).tokens[0][0])

    def decode(self, ids: Sequence[int], steps: int) -> list[float]:
        made = self._generate(ids, steps + 1)
        times = made.perf_metrics.raw_metrics.m_durations  # microseconds: the first is the prompt's
        seconds = [float(t) / 1e6 for t in times]
        if len(seconds) == steps + 1:
            seconds = seconds[1:]
        if len(seconds) != steps:
            raise RuntimeError(f"{len(seconds)} durations for {steps} steps")
        return seconds

    def batch(self, prompts: Sequence[Sequence[int]], steps: int) -> list[float]:
        if self.batcher is None:
            self.batcher = openvino_genai.ContinuousBatchingPipeline(self.config["model"], _scheduler(), "CPU", self.settings)
        handles = [
            self.batcher.add_request(number, openvino.Tensor(np.asarray([ids], np.int64)), _greedy(steps + 2))
            for number, ids in enumerate(prompts)
        ]
        made = [0] * len(prompts)

        def step() -> None:
            self.batcher.step()
            for number, handle in enumerate(handles):
                if handle.can_read():
                    made[number] += sum(len(output.generated_ids) for output in handle.read().values())

        while min(made) < 1:
            step()
        before = sum(made)
        seconds = timed(steps, step)
        if sum(made) - before != steps * len(prompts):
            raise RuntimeError(f"{sum(made) - before} tokens in {steps} steps of {len(prompts)} sequences")
        while self.batcher.has_non_finished_requests():
            step()
        return seconds

    def logits(self, ids: Sequence[int]) -> Any:
        if self.core is None:
            model = openvino.Core().read_model(f"{self.config['model']}/openvino_model.xml")
            compiled = openvino.Core().compile_model(model, "CPU", self.settings)
            self.core = compiled.create_infer_request()
        self.core.reset_state()
        given = np.asarray([ids], np.int64)
        inputs = {
            "input_ids": given,
            "attention_mask": np.ones_like(given),
            "position_ids": np.arange(len(ids))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return self.core.infer(inputs)["logits"][0]

    def facts(self) -> Mapping[str, Any]:
        return {"version": f"openvino-genai {openvino_genai.__version__}", "settings": {k: str(v) for k, v in self.settings.items()}}


def _scheduler() -> Any:
    config = openvino_genai.SchedulerConfig()
    config.max_num_batched_tokens = 4096
    config.max_num_seqs = 256
    config.cache_size = 1  # GB
    config.enable_prefix_caching = False
    return config


def _greedy(tokens: int) -> Any:
    wanted = openvino_genai.GenerationConfig()
    wanted.max_new_tokens = tokens
    wanted.ignore_eos = True
    wanted.do_sample = False
    return wanted


if __name__ == "__main__":
    main(OpenVino)
