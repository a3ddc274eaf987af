"""The simulated engine: continuous batching in model time. Knows nothing of HTTP, asyncio or the wall clock.

A driver calls `begin_step(now)`, lets the returned time pass, and calls `end_step(now)`, which delivers tokens.
"""

from __future__ import annotations

from collections import deque
from random import Random

from loadtest.server.sim.drafter import DrafterFactory
from loadtest.server.sim.metrics import Metrics
from loadtest.server.sim.options import SimOptions
from loadtest.server.sim.parameters import Parameters, Stratum
from loadtest.server.sim.prefix_cache import PrefixCache, block_keys
from loadtest.server.sim.sequence import Group, Sequence, Sink
from loadtest.server.sim.text import answer, stable_seed

SUFFIX_KEY_TOKENS = 64
"""A prompt counts as answered before when these last tokens are the same: a salt in front hides no long prompt."""


class Engine:
    """All sequences of one server. Single-threaded."""

    def __init__(self, options: SimOptions, parameters: Parameters | None = None) -> None:
        self.options = options
        self.parameters = p = parameters or Parameters()
        self.metrics = Metrics(
            model_name=options.model,
            max_model_len=options.max_model_len,
            positions=options.gamma,
            block_size=p.block_size,
            num_blocks=p.num_blocks,
        )
        self.drafters = DrafterFactory(options.method, options.gamma, p, options.acceptance)
        self.prefix_cache = PrefixCache(p.num_blocks)
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._scheduled: list[Sequence] = []
        self._step_prompt_tokens = 0
        self._noise = Random(stable_seed(options.seed, "noise"))
        self._unseeded = 0
        self._reserved_blocks = 0

    def submit(
        self,
        prompt: list[str],
        stratum: Stratum,
        sink: Sink,
        now: float,
        *,
        max_tokens: int,
        group: Group,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        temperature: float = 0.0,
        sampling_seed: int | None = None,
        index: int = 0,
    ) -> Sequence:
        """Queues one sequence; its text and its draws are fixed here (greedy: by seed and prompt alone)."""
        text = "".join(prompt)
        sampling: tuple[object, ...] = ("greedy",)
        if temperature > 0:
            if sampling_seed is None:
                self._unseeded += 1
            sampling = (temperature, self._unseeded if sampling_seed is None else sampling_seed, sampling_seed, index)
        seed = stable_seed(self.options.seed, text, *sampling)
        tokens, stops = answer(text, stratum, max_tokens, min_tokens, ignore_eos, seed)
        suffix_key = stable_seed(*prompt[-SUFFIX_KEY_TOKENS:])
        sequence = Sequence(
            prompt=prompt,
            tokens=tokens,
            finish="stop" if stops else "length",
            stratum=stratum,
            suffix_key=suffix_key,
            drafter=self.drafters.make(stratum, suffix_key, temperature, Random(seed ^ 1)),
            max_tokens=max_tokens,
            group=group,
            sink=sink,
            arrival_s=now,
            blocks=block_keys(prompt, self.parameters.block_size),
            reserved_blocks=-(-(len(prompt) + max_tokens) // self.parameters.block_size),
        )
        self.waiting.append(sequence)
        self._gauges()
        return sequence

    @property
    def idle(self) -> bool:
        """True when nothing runs and nothing waits."""
        return not self.running and not self.waiting

    def begin_step(self, now: float) -> float | None:
        """Schedules one step at `now`; returns its length in seconds (speed applied), or None when there is nothing."""
        self._drop_closed()
        self._admit(now)
        if not self.running:
            self._gauges()
            return None
        p, options = self.parameters, self.options
        budget = p.prefill_budget_tokens
        self._scheduled = []
        drafted_total = decoding = prefilled = 0
        for sequence in self.running:
            if sequence.prefill_left:
                part = min(sequence.prefill_left, budget)
                if not part:
                    continue
                budget -= part
                prefilled += part
                sequence.prefill_left -= part
                sequence.step = None if sequence.prefill_left else (0, 0)
            elif sequence.drafter is None:
                sequence.step = (0, 0)
            else:
                decoding += 1
                room = options.max_model_len - len(sequence.prompt) - sequence.delivered - 1
                sequence.step = sequence.drafter.step(max(0, room))
                drafted_total += sequence.step[0]
            self._scheduled.append(sequence)
        self._step_prompt_tokens = prefilled
        step_ms = p.step_ms(options.method, options.gamma, decoding, drafted_total, prefilled, len(self._scheduled))
        noise = max(0.5, 1.0 + p.step_noise * self._noise.gauss(0.0, 1.0))
        self._gauges()
        return step_ms * noise / 1000.0 / options.speed

    def end_step(self, now: float) -> None:
        """Ends the step: counts, delivers, and takes finished sequences out."""
        metrics = self.metrics
        generated = 0
        done: list[Sequence] = []
        for sequence in self._scheduled:
            if sequence.step is None:
                continue
            drafted, accepted = sequence.step
            if drafted:
                self._count_draft(sequence, drafted, accepted)
            start = sequence.delivered
            # What runs past the end was accepted and counted, but is never delivered.
            end = min(start + accepted + 1, len(sequence.tokens))
            generated += end - start
            if start == 0:
                self._count_first(sequence, now)
            else:
                metrics.observe("inter_token_latency_seconds", now - sequence.last_token_s)
            sequence.last_token_s = now
            sequence.delivered = end
            if end == len(sequence.tokens):
                done.append(sequence)
                sequence.sink.deliver(start, end, sequence.finish)
            else:
                sequence.sink.deliver(start, end, None)
        if generated:
            metrics.add("generation_tokens_total", generated)
        metrics.observe("iteration_tokens_total", generated + self._step_prompt_tokens)
        for sequence in done:
            self._finish(sequence, now)
        self._scheduled = []
        self._gauges()

    def _admit(self, now: float) -> None:
        budget = self.parameters.prefill_budget_tokens - sum(s.prefill_left for s in self.running)
        while self.waiting and len(self.running) < self.options.max_num_seqs and budget > 0:
            sequence = self.waiting[0]
            if self.running and self._reserved_blocks + sequence.reserved_blocks > self.parameters.num_blocks:
                break
            self.waiting.popleft()
            if sequence.sink.closed:
                continue
            self._reserved_blocks += sequence.reserved_blocks
            sequence.scheduled_s = now
            # At least one token is always computed, so a prompt of whole blocks never hits its last one.
            usable = (len(sequence.prompt) - 1) // self.parameters.block_size
            sequence.cached = self.prefix_cache.hits(sequence.blocks[:usable]) * self.parameters.block_size
            sequence.prefill_left = len(sequence.prompt) - sequence.cached
            self.metrics.add("prefix_cache_queries_total", len(sequence.prompt))
            self.metrics.add("prefix_cache_hits_total", sequence.cached)
            self.metrics.add("prompt_tokens_cached_by_source_total", sequence.cached, "device")
            self.running.append(sequence)
            budget -= sequence.prefill_left

    def _drop_closed(self) -> None:
        """Client gone: the sequence leaves without any finished-request figures, as in vLLM."""
        gone = [s for s in self.running if s.sink.closed]
        for sequence in gone:
            self._release(sequence)
        if any(s.sink.closed for s in self.waiting):
            self.waiting = deque(s for s in self.waiting if not s.sink.closed)

    def _release(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._reserved_blocks -= sequence.reserved_blocks

    def _count_draft(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        sequence.spec.add(drafted, accepted)
        values = self.metrics.values
        values["spec_decode_num_drafts_total"][""] += 1
        values["spec_decode_num_draft_tokens_total"][""] += drafted
        values["spec_decode_num_accepted_tokens_total"][""] += accepted
        positions = values["spec_decode_num_accepted_tokens_per_pos_total"]
        for position in range(accepted):
            positions[str(position)] += 1

    def _count_first(self, sequence: Sequence, now: float) -> None:
        metrics, computed = self.metrics, len(sequence.prompt) - sequence.cached
        sequence.first_token_s = now
        self.prefix_cache.add(sequence.blocks)
        metrics.observe("time_to_first_token_seconds", now - sequence.arrival_s)
        metrics.add("prompt_tokens_total", len(sequence.prompt))
        metrics.add("prompt_tokens_cached_total", sequence.cached)
        metrics.add("prompt_tokens_by_source_total", computed, "local_compute")
        metrics.add("prompt_tokens_by_source_total", sequence.cached, "local_cache_hit")

    def _finish(self, sequence: Sequence, now: float) -> None:
        self._release(sequence)
        count, group = len(sequence.tokens), sequence.group
        self.drafters.memory.learn(sequence.stratum, sequence.suffix_key, count)
        decode_s = now - sequence.first_token_s
        samples = {
            "request_prompt_tokens": len(sequence.prompt),
            "request_generation_tokens": count,
            "request_params_max_tokens": sequence.max_tokens,
            "request_time_per_output_token_seconds": decode_s / (count - 1) if count > 1 else 0.0,
            "e2e_request_latency_seconds": now - sequence.arrival_s,
            "request_queue_time_seconds": sequence.scheduled_s - sequence.arrival_s,
            "request_inference_time_seconds": now - sequence.scheduled_s,
            "request_prefill_time_seconds": sequence.first_token_s - sequence.scheduled_s,
            "request_decode_time_seconds": decode_s,
            "request_num_preemptions": 0,
            "request_prefill_kv_computed_tokens": len(sequence.prompt) - sequence.cached,
        }
        for name, value in samples.items():
            self.metrics.observe(name, value)
        self.metrics.add("request_success_total", 1, sequence.finish)
        group.finished += 1
        group.longest = max(group.longest, count)
        if group.finished == group.n:
            self.metrics.observe("request_params_n", group.n)
            self.metrics.observe("request_max_num_generation_tokens", group.longest)

    def _gauges(self) -> None:
        size = self.parameters.block_size
        used = sum(-(-(len(s.prompt) + s.delivered) // size) for s in self.running)
        waiting = len(self.waiting)
        self.metrics.set(
            {
                "num_requests_running": float(len(self.running)),
                "num_requests_waiting": float(waiting),
                "kv_cache_usage_perc": used / self.parameters.num_blocks,
            }
        )
        self.metrics.values["num_requests_waiting_by_reason"]["capacity"] = float(waiting)
