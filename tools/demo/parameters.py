"""Parameters as flat fp32 masters with working copies: matrices in bf16 (optionally rounded to the affine codes that they
will be served in, gradients passing straight through), vectors in fp32. One flat buffer a kind keeps the optimiser, the
rounding and the gradient norm at one kernel each."""

import math

import torch

GROUP = 64


def affine_round(w, bits):
    """Values of `w` [N, 64] after MLX's affine quantisation of one group a row: scale and bias are stored in bf16, the sign
    of the scale follows the edge that is larger in magnitude, and that edge is met exactly."""
    levels = (1 << bits) - 1
    low, high = w.amin(1, keepdim=True), w.amax(1, keepdim=True)
    down = low.abs() > high.abs()
    scale = ((high - low) / levels).clamp(min=1e-7)
    scale = torch.where(down, scale, -scale)
    edge = torch.where(down, low, high)
    steps = torch.round(edge / scale)
    scale = torch.where(steps != 0, edge / torch.where(steps == 0, 1.0, steps), scale)
    bias = torch.where(steps == 0, 0.0, edge)
    codes = torch.round((w - bias) / scale).clamp(0, levels)
    return codes * scale.bfloat16().float() + bias.bfloat16().float()


class Flat:
    """Parameters of one kind in one buffer."""

    def __init__(self, shapes, values, device, dtype, bits):
        self.shapes, self.bits, self.dtype = shapes, bits, dtype
        self.master = torch.cat([values[name].reshape(-1).float() for name in shapes]).to(device)
        self.work = torch.empty(self.master.numel(), dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.work)
        self.first, self.second = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.leaves, at = {}, 0
        for name, shape in shapes.items():
            count = math.prod(shape)
            leaf = self.work[at:at + count].view(shape).detach().requires_grad_()
            leaf.grad = self.grad[at:at + count].view(shape)
            self.leaves[name] = leaf
            at += count

    @torch.no_grad()
    def refresh(self, rounded):
        if rounded and self.bits:
            self.work.copy_(affine_round(self.master.bfloat16().float().view(-1, GROUP), self.bits).view(-1))
        else:
            self.work.copy_(self.master)


@torch.compile(dynamic=False, disable=not torch.cuda.is_available())
def adamw_step(master, grad, first, second, scale, rate, decay, first_share, second_share, step):
    grad = grad.float() * scale
    first.lerp_(grad, 1 - first_share)
    second.lerp_(grad * grad, 1 - second_share)
    unbiased = first / (1 - first_share**step)
    spread = (second / (1 - second_share**step)).sqrt() + 1e-8
    master.sub_(rate * (unbiased / spread + decay * master))


class Parameters:
    """specification: name -> (shape, kind, initial value), kind one of "matrix4", "matrix8", "vector"."""

    def __init__(self, specification, device):
        self.flats = {}
        for kind, bits in (("matrix4", 4), ("matrix8", 8), ("plain", 0), ("vector", 0)):
            chosen = {name: part for name, part in specification.items() if part[1] == kind}
            if chosen:
                dtype = torch.float32 if kind == "vector" or not torch.device(device).type == "cuda" else torch.bfloat16
                self.flats[kind] = Flat({n: tuple(p[0]) for n, p in chosen.items()}, {n: p[2] for n, p in chosen.items()},
                                        device, dtype, bits)
        self.step_count = 0

    def leaves(self):
        return {name: leaf for flat in self.flats.values() for name, leaf in flat.leaves.items()}

    def masters(self):
        found = {}
        for flat in self.flats.values():
            at = 0
            for name, shape in flat.shapes.items():
                found[name] = flat.master[at:at + math.prod(shape)].view(shape)
                at += math.prod(shape)
        return found

    def load(self, tensors):
        for name, master in self.masters().items():
            master.copy_(tensors[name])

    def refresh(self, rounded=False):
        for flat in self.flats.values():
            flat.refresh(rounded)
            flat.grad.zero_()

    def update(self, rate, decay=0.1, clip=1.0, betas=(0.9, 0.95)):
        """One AdamW step; vectors aren't decayed. Returns the gradient's norm (a tensor)."""
        norm = torch.stack([flat.grad.float().norm() for flat in self.flats.values()]).norm()
        scale = (clip / (norm + 1e-6)).clamp(max=1.0)
        self.step_count += 1
        device = norm.device
        number = lambda x: torch.tensor(float(x), device=device)
        for kind, flat in self.flats.items():
            adamw_step(flat.master, flat.grad, flat.first, flat.second, scale, number(rate),
                       number(0.0 if kind == "vector" else decay), betas[0], betas[1], number(self.step_count))
        return norm
