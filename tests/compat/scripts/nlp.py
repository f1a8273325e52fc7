"""Sentence classification as scripts for Accelerate have it: padding, a schedule, metrics."""

import argparse

import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

from notebook_accel import Accelerator, DistributedType
from notebook_accel.utils import set_seed

EVAL_BATCH_SIZE = 7
GOOD = ["bright", "clever", "lovely", "warm", "kind"]
BAD = ["dull", "rotten", "ugly", "cold", "cruel"]
NEUTRAL = ["the", "a", "film", "day", "very", "was", "and", "it"]
VOCABULARY = {word: i + 1 for i, word in enumerate([*GOOD, *BAD, *NEUTRAL])}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY) + 1, 16, padding_idx=0)
        self.head = nn.Linear(16, 2)

    def forward(self, input_ids, attention_mask, labels=None):
        mask = attention_mask.unsqueeze(-1)
        pooled = (self.embedding(input_ids) * mask).sum(1) / mask.sum(1)
        logits = self.head(pooled)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def sentences(num, seed):
    generator = torch.Generator().manual_seed(seed)

    def pick(words):
        return words[torch.randint(len(words), (1,), generator=generator).item()]

    rows = []
    for i in range(num):
        length = 2 + torch.randint(6, (1,), generator=generator).item()
        words = [pick(NEUTRAL) for _ in range(length)] + [pick(GOOD if i % 2 else BAD)]
        rows.append({"text": words, "label": i % 2})
    return rows


def get_dataloaders(accelerator, batch_size):
    def tokenize(row):
        return {"input_ids": [VOCABULARY[word] for word in row["text"]], "labels": row["label"]}

    with accelerator.main_process_first():
        train, evaluation = (list(map(tokenize, sentences(*one))) for one in ((200, 0), (61, 1)))

    def collate_fn(examples):
        longest = max(len(one["input_ids"]) for one in examples)
        if accelerator.mixed_precision != "no":
            longest = (longest + 7) // 8 * 8
        ids = [one["input_ids"] + [0] * (longest - len(one["input_ids"])) for one in examples]
        ids = torch.tensor(ids)
        labels = torch.tensor([one["labels"] for one in examples])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}

    return (
        DataLoader(train, shuffle=True, collate_fn=collate_fn, batch_size=batch_size),
        DataLoader(evaluation, collate_fn=collate_fn, batch_size=EVAL_BATCH_SIZE),
    )


def training_function(config, args):
    accelerator = Accelerator(cpu=args.cpu, mixed_precision=args.mixed_precision)
    set_seed(config["seed"])
    train_dataloader, eval_dataloader = get_dataloaders(accelerator, config["batch_size"])
    model = Classifier().to(accelerator.device)
    optimizer = AdamW(params=model.parameters(), lr=config["lr"])
    total = len(train_dataloader) * config["num_epochs"]
    lr_scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    model, optimizer, train_dataloader, eval_dataloader, lr_scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, lr_scheduler
    )
    for epoch in range(config["num_epochs"]):
        model.train()
        for batch in train_dataloader:
            outputs = model(**batch)
            accelerator.backward(outputs["loss"])
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
        model.eval()
        correct, counted = 0, 0
        for batch in eval_dataloader:
            with torch.no_grad():
                outputs = model(**batch)
            predictions = outputs["logits"].argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, batch["labels"]))
            correct += (predictions == references).sum().item()
            counted += len(references)
        accelerator.print(f"epoch {epoch}:", {"accuracy": correct / counted})
    if accelerator.distributed_type == DistributedType.NO:
        assert accelerator.num_processes == 1
    final_lr = lr_scheduler.get_last_lr()[0]
    accelerator.end_training()
    return {"accuracy": correct / counted, "counted": counted, "lr": final_lr}


def main(argv=None):
    parser = argparse.ArgumentParser(description="Sentence classification.")
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], default=None)
    parser.add_argument("--cpu", action="store_true")
    args = parser.parse_args(argv)
    config = {"lr": 5e-2, "num_epochs": 3, "seed": 42, "batch_size": 16}
    return training_function(config, args)


if __name__ == "__main__":
    main()
