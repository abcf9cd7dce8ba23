"""What makes the calibrations, demos and fits of journeys quick."""

from dataclasses import replace
from math import inf

from calibrate.profiling import anchors, passes, task


def few_sizes(set_attribute=setattr):
    """Let calibrations time few sizes in one pass, and not use up their time; nor anchors, the most of all calls."""
    usual, schedules = task.effort_for, passes.schedules_of

    def few(*sizes, quick):
        effort = usual(*sizes, quick=quick)
        grids = ("target_rows", "part_rows", "head_rows", "contexts", "prefill_rows")
        ends = {name: tuple(sorted({*getattr(effort, name)[:1], *getattr(effort, name)[-1:]})) for name in grids}
        steps = {"draft_rows": (1, 4, effort.draft_rows[-1]), "tree_rows": effort.tree_rows[-1:]}
        return replace(effort, **ends, **steps, passes=1, repeats=1, run_tokens=4)

    set_attribute(task, "effort_for", few)

    def one_of_a_kind(*given, is_check):
        found = schedules(*given, is_check=is_check)
        kinds = {
            (one.method, one.exit_features, one.draft_lane is None and one.target_lane): one for one in reversed(found)
        }
        return [*kinds.values()][::-1][: 1 if is_check else None]

    set_attribute(passes, "schedules_of", one_of_a_kind)
    set_attribute(passes, "_LEAST_OF_TARGET", 1)
    set_attribute(anchors, "_WARM_UP", 0)
    set_attribute(anchors, "_EVERY_S", inf)


def few_fits(set_attribute):
    """Let fits without one task, by which `reproduce` judges its own, end soon."""
    set_attribute("planner.reproduce.fitted_table._CALLS", 2)


def lookup_alone(set_attribute=setattr):
    """Let prompt lookup be the one head that ships; the quick calibration times all that do."""
    from mirrorsd import model_pair

    shipped_for, heads = model_pair.shipped_for, model_pair._kinds("a head")

    def shipped(target):
        models = shipped_for(target)
        kinds = {one.name: model_pair.kind_of(one.folder) for one in models}
        return tuple(one for one in models if one.name == "prompt-lookup" or kinds[one.name] not in heads)

    set_attribute(model_pair, "shipped_for", shipped)


def few_prompts(set_attribute=setattr):
    """Let recordings of one prompt for every kind of task take two kinds."""
    from calibrate import prompts

    taken = prompts.take_per_category
    set_attribute(prompts, "take_per_category", lambda *given: taken(*given)[:2])


def few_lanes(count, set_attribute=setattr):
    """Let demos use the first lanes alone: a core each, before the one of all cores."""
    from mirrorsd.demo import demo

    lanes = demo.chosen_lanes
    set_attribute(demo, "chosen_lanes", lambda *given: lanes(*given)[:count])
