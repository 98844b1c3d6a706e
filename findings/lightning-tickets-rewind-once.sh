#!/usr/bin/env bash
# Lightning's ModelPruning rewinds a lottery ticket to its first weights once; from then on, on a CPU, to what was trained.
#
# Seen with lightning 2.6.6, torch 2.13.0, CPU. By default the callback prunes at the end of each epoch and puts the
# kept weights back to "the exact original parameters". After the first epoch they are those. After each later one they
# are the trained ones: the saved copy became the layer's own memory at the first rewind, and was trained with it.
# Also, `amount=0.5` ("the fraction of parameters to prune") is taken of what is left, in each epoch: .5, .25, .12 and .06
# stay; and with the default, a choice among all layers, the last layer has no weight after two epochs, without a word.
#
# Whom it hurts: whoever looks for tickets over several epochs, or expects half of the weights to be left at the end.
# Exits 0 if the behaviour is as stated, 1 if it changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 lightning==2.6.6
cat >"$folder/program.py" <<'PY'
import logging

import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelPruning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
torch.set_num_threads(1)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)

    def training_step(self, batch, index):
        return (self.last(self.first(batch[0]).relu()) - batch[1]).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


class Watch(Callback):
    def on_train_epoch_end(self, trainer, net):
        held = net.first.weight_orig
        left = [float(layer.weight_mask.mean()) for layer in (net.first, net.last) if hasattr(layer, "weight_mask")]
        told = "the first weights" if torch.equal(held, first) else "others"
        print(f"epoch {trainer.current_epoch}: rewound to {told}; left", [round(each, 2) for each in left])


def fit(name, options):
    global first
    print(name)
    torch.manual_seed(0)
    net = Net()
    first = net.first.weight.detach().clone()
    data = TensorDataset(torch.randn(64, 16), torch.randn(64, 1))
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", enable_model_summary=False, **quiet,
        callbacks=[ModelPruning("l1_unstructured", amount=0.5, **options(net)), Watch()],
    )
    trainer.fit(net, DataLoader(data, 16))


fit("one layer", lambda net: {"parameters_to_prune": [(net.first, "weight")]})
fit("all weights", lambda net: {"parameter_names": ["weight"]})
PY
said=$(cd "$folder" && "$folder/venv/bin/python" -W ignore program.py 2>/dev/null)
said=$(printf '%s\n' "$said" | grep -E '^(one|all|epoch)')
printf '%s\n' "$said"
wanted="one layer
epoch 0: rewound to the first weights; left [0.5]
epoch 1: rewound to others; left [0.25]
epoch 2: rewound to others; left [0.12]
epoch 3: rewound to others; left [0.06]
all weights
epoch 0: rewound to the first weights; left [0.51, 0.34]
epoch 1: rewound to others; left [0.27, 0.0]
epoch 2: rewound to others; left [0.13, 0.0]
epoch 3: rewound to others; left [0.07, 0.0]"
if [[ $said == "$wanted" ]]; then
  echo "as stated"
else
  echo "changed"
  exit 1
fi
