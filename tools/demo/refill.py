"""Generation for very many prompts: a fixed number of rows, each feeding one token a step. A row that ends takes the next
prompt at once and feeds it token by token through the same step, so there is no padding, no separate prefill and no host
decision; the step is captured once as a CUDA graph."""

import time

import torch

import decode_kernels


class RefillLoop:
    """step(tokens [B], positions [B]) -> logits [B, V]; positions 0 start a row afresh.

    prompts [N + 1, P] int32 (the last row is a dummy that idle rows chew on), lengths [N + 1] int32, temperatures [N + 1].
    Results: tokens [N + 1, T] int32, ends [N + 1] int32 (length with the end token; 0: not finished, < 0: cut at T).
    """

    def __init__(self, step, rows, prompts, lengths, temperatures, end_ids, longest, min_p, seed=0):
        device = prompts.device
        self.step_model, self.seed, self.log_min_p = step, seed, float(torch.tensor(min_p).log())
        self.prompts, self.lengths, self.temperatures = prompts, lengths, temperatures
        self.count, self.longest = prompts.shape[0] - 1, longest
        self.end_ids = torch.tensor(end_ids, dtype=torch.int32, device=device)
        whole = dict(dtype=torch.int32, device=device)
        self.tokens = torch.zeros(self.count + 1, longest, **whole)
        self.ends = torch.zeros(self.count + 1, **whole)
        self.tokens[:, 0] = prompts[:, 0]
        self.index = torch.arange(rows, **whole).clamp(max=self.count)
        self.position = torch.zeros(rows, **whole)
        self.token = prompts[self.index.long(), 0].clone()
        self.taken = torch.full((1,), rows, **whole)
        self.counter = torch.zeros(1, **whole)
        self.drawn = torch.zeros(1, dtype=torch.int64, device=device)

    def step(self):
        logits = self.step_model(self.token, self.position)
        index = self.index.long()
        drawn = decode_kernels.draw(logits, self.temperatures[index], self.counter, self.log_min_p, self.seed)
        after = self.position + 1
        in_prompt = after < self.lengths[index]
        column = after.long().clamp(max=self.prompts.shape[1] - 1)
        token = torch.where(in_prompt, self.prompts[index, column], drawn)
        self.tokens[index, after.long()] = token
        ended = ~in_prompt & (token[:, None] == self.end_ids).any(1)
        cut = ~ended & (after >= self.longest - 1)
        closed = ended | cut
        self.ends[index] = torch.where(closed, torch.where(cut, -after - 1, after + 1), self.ends[index])
        self.drawn += (~in_prompt).sum()
        fresh = (self.taken + closed.cumsum(0).int() - 1).clamp(max=self.count)
        self.index.copy_(torch.where(closed, fresh, self.index))
        self.position.copy_(torch.where(closed, 0, after))
        self.token.copy_(torch.where(closed, self.prompts[self.index.long(), 0], token))
        self.taken += closed.sum().int()
        self.counter += 1

    def run(self, seconds, report=None, most_steps=None):
        """Until the prompts or the time run out. report(loop, steps, elapsed) is called about every second."""
        replay = self.step
        if self.prompts.is_cuda:
            warm = torch.cuda.Stream()
            with torch.cuda.stream(warm):
                for _ in range(3):
                    self.step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            replay = graph.replay
        began, steps = time.time(), 0
        while time.time() - began < seconds and (most_steps is None or steps < most_steps):
            for _ in range(32):
                replay()
            steps += 32
            if self.prompts.is_cuda:
                torch.cuda.synchronize()
            if report:
                report(self, steps, time.time() - began)
            if int(self.taken) >= self.count + self.index.numel():
                break
        return steps
