"""Loops whose turns are one computation."""

from __future__ import annotations

import ast

import pytest

from torchledger.planning.carried_loops import carries


@pytest.mark.parametrize(
    "text",
    [
        "for t in times: noise = net(x, t); x = x - noise / n",
        "for i in range(n): x += step * net(x, i)",
        "for i in range(n): state = cell(state)",
        "for i in range(n): out, state = cell(given[i], state)",
        "for t in times: self.x = self.advance(self.x, t)",
        "while not done: scores = net(ids); following = scores.argmax(-1); ids = torch.cat([ids, following], 1)",
        "for i in range(n): text[:, i] = net(text[:, :i])",
        "for i in range(n): token.copy_(advance(token))",
        "for i in range(n): tokens.append(net(tokens[-1]))",
        "for i in range(n):\n with autocast():\n  y = net(x)\n if more:\n  x = embed(y)",
        "for chunk in bank: found = torch.cat([best, q @ chunk]); best = found.topk(5).values",
    ],
)
def test_what_a_call_is_given_of_the_turn_before_is_carried(text: str) -> None:
    assert carries(ast.parse(text).body[0])


@pytest.mark.parametrize(
    "text",
    [
        "for x, y in batches: out = net(x); total += loss(out, y).item(); count += 1",
        "for x in batches: x = x.cuda(); y = net(x); found = torch.cat([found, y]); best = max(best, y.mean())",
        "for i in range(n): seen = seen + len(x); y = net(data[i])",
        "for x in batches: metric.update(net(x)); print(metric.compute())",
        "for i in range(n): results[i] = net(given[i])",
        "for x in batches:\n y = net(x)\n if late:\n  now = time.time()\n  print(now - then)\n  then = now",
        "for i in range(n): images = generate(net, labels); made += len(images)",
        "for x in batches:\n def scaled(v): return net(v, scale)\n y = scaled(x)",
    ],
)
def test_what_is_added_up_or_kept_is_not_carried(text: str) -> None:
    assert not carries(ast.parse(text).body[0])
