"""Tasks that train tiny Medusa and Hydra heads, and what a head says at one position of one conversation."""

import torch

from runtime.models.decoder import causal_mask
from training.recipe import HydraRecipe, MedusaRecipe, Optimisation
from training.tasks.heads import HydraTask, MedusaTask

KEPT = torch.arange(0, 61, 2)
_COMMON = {
    "num_heads": 3,
    "num_nodes": 12,
    "tree_sizes": (12, 4),
    "vocab_size": len(KEPT),
    "num_held_out": 4,
    "optimisation": Optimisation(num_tokens=50),
}
MEDUSA_RECIPE = MedusaRecipe(**_COMMON, num_blocks=2)
HYDRA_RECIPE = HydraRecipe(**_COMMON, prefix_width=6, head_width=8, shared_widths=(10,))


def medusa_task(target, states):
    return MedusaTask(MEDUSA_RECIPE, KEPT, states)


def hydra_task(target, states):
    return HydraTask(HYDRA_RECIPE, KEPT, states)


def predicting_positions(states, index, num_heads):
    """Positions of a conversation whose next token belongs to the answer and that have `num_heads` before them."""
    row = states.conversations[index]
    return [at for at in range(len(row.ids) - 1) if at + 1 >= len(row.prompt) and at >= num_heads]


def pairs_by_hand(task, batch, head):
    """Logits of a head and of the target for the same token, pair by pair."""
    state_of = medusa_state if isinstance(task, MedusaTask) else hydra_state
    rows = task.states.target.lm_head.weight[KEPT].to(torch.bfloat16)
    for index in batch:
        stored = task.states.rows(4, index)
        for position in predicting_positions(task.states, index, 3):
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                x = state_of(task, index, position, head)
            yield (x.to(torch.bfloat16) @ rows.T).float(), (stored[position] @ rows.T).float()


def medusa_state(task, index, position, head):
    stored = task.states.rows(4, index)
    return task.module.heads[head - 1](stored[position - head].float())


def hydra_state(task, index, position, head):
    model, last = task.module, position - head
    ids = task.states.conversations[index].ids
    prefix = model.read_prefix(
        task.states.rows(4, index)[None, : last + 1].float(),
        positions=torch.arange(last + 1),
        mask=causal_mask(last + 1, torch.bfloat16),
    )[0, -1:]
    between = [model.embed(torch.tensor([ids[at]])) for at in range(last + 1, position + 1)]
    return model(prefix, between[::-1])[0]
