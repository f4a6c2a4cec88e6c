"""Classify sequences of different lengths: does a 7 follow a 3 anywhere?"""

import torch
from torch import nn

from hopfy.nn import HopfieldPooling


class Classifier(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, width, padding_idx=0)
        self.context = nn.Conv1d(width, width, kernel_size=3, padding=1)
        self.pool = HopfieldPooling(width, omega="1.5-entmax")
        self.head = nn.Linear(width, 1)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.context(self.embed(tokens).mT).relu().mT
        pooled, weights = self.pool(x, mask=tokens > 0, need_weights=True)
        return self.head(pooled).squeeze(-1), weights


def sample(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(1, 8, (size, 16)) * (torch.arange(16) < torch.randint(4, 17, (size, 1)))
    return tokens, ((tokens[:, :-1] == 3) & (tokens[:, 1:] == 7)).any(1).float()


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for tokens, labels in (sample(64) for _ in range(150)):
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(tokens)[0], labels).backward()
    optimizer.step()
tokens, labels = sample(1000)
logits, weights = model(tokens)
accuracy = ((logits > 0) == labels.bool()).float().mean().item()
zeros = (weights[:, 0, 0] == 0)[tokens > 0].float().mean().item()
print(f"accuracy: {accuracy:.1%}; {zeros:.0%} of the tokens get no weight")
