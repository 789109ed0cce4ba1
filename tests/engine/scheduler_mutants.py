#!/usr/bin/env python3
"""Bugs inserted into copies of the scheduler; tests/engine/scheduler_mutant.c must find each by simulation.

  scheduler_mutants.py --list           names, separated by semicolons (for CMake)
  scheduler_mutants.py NAME OUT.c       writes the scheduler's sources with that bug as one translation unit

A mutant is a list of edits (file in engine/, text, replacement). A text must occur exactly once in its file. If a change of
the scheduler removes it, this script fails and the mutant must be adapted."""

import pathlib
import sys

ENGINE = pathlib.Path(__file__).resolve().parents[2] / "engine"
FILES = ["scheduler_internal.h", "scheduler.c", "scheduler_admit.c", "scheduler_check.c", "scheduler_commit.c",
         "scheduler_pages.c", "scheduler_plan.c", "scheduler_state.c", "scheduler_swap.c", "scheduler_tenants.c",
         "scheduler_times.c"]

MUTANTS = {
    "none": ("no bug: nothing may be found", []),
    "leak_on_cancel": ("a cancelled sequence keeps a page", [
        ("scheduler_commit.c", "    if (sequence->state == RP_SEQUENCE_RUNNING) {\n        rp_sched_release_pages(",
         "    if (sequence->state == RP_SEQUENCE_RUNNING) {\n"
         "        if (reason == RP_FINISH_CANCELLED && sequence->held[0].end > sequence->held[0].first + 1)\n"
         "            sequence->held[0].end--;\n"
         "        rp_sched_release_pages(")]),
    "early_reuse": ("pages are free before the last planned step is over", [
        ("scheduler_pages.c", "    rp_kv_pool_release(&scheduler->pool, page, fence);",
         "    rp_kv_pool_release(&scheduler->pool, page, 0);")]),
    "border_off_by_one": ("a page border is crossed one token late", [
        ("scheduler_plan.c", "    uint32_t index = sequence->planned_length / scheduler->config.page_tokens;",
         "    uint32_t index = (sequence->planned_length - 1) / scheduler->config.page_tokens;")]),
    "chunk_longer_than_its_pages": ("a sequence with windows has a chunk as long as the step", [
        ("scheduler_plan.c", "    if (scheduler->windowed_count)\n        count = RP_MIN(count, rp_sched_chunk_max",
         "    if (false)\n        count = RP_MIN(count, rp_sched_chunk_max")]),
    "hash_without_salt": ("prefixes are shared between salts", [
        ("scheduler_admit.c", "    uint64_t salt = request->cache_salt;", "    uint64_t salt = 0;"),
        ("scheduler_admit.c", ".salt = request->cache_salt,", ".salt = 0,")]),
    "token_lost_on_swap": ("a result that arrives while swapped out is dropped", [
        ("scheduler_commit.c", "    RP_ASSERT(sequence->request != NULL);",
         "    RP_ASSERT(sequence->request != NULL);\n"
         "    if (sequence->state == RP_SEQUENCE_SWAPPED)\n        return;")]),
    "nan_cached": ("pages with NaN are cached", [
        ("scheduler_commit.c", "        condemn_pages(scheduler, sequence);",
         "        if (scheduler->config.prefix_cache) {\n"
         "            sequence->verified_length = row->start + row->count;\n"
         "            rp_sched_prove_pages(scheduler, sequence);\n"
         "        } else {\n            condemn_pages(scheduler, sequence);\n        }")]),
    "state_not_restored": ("a prefix hit begins without a snapshot", [
        ("scheduler_admit.c", "(struct rp_sched_join){request, sequence->slot, hit_tokens, match->snapshot};",
         "(struct rp_sched_join){request, sequence->slot, hit_tokens, 0};")]),
    "state_of_other_tokens": ("a snapshot is named after the page before", [
        ("scheduler_pages.c", "        rp_kv_snapshots_name(&scheduler->snapshots, sequence->pending_snapshots,\n"
         "                             sequence->hashed_pages * scheduler->config.page_tokens,",
         "        rp_kv_snapshots_name(&scheduler->snapshots, sequence->pending_snapshots,\n"
         "                             (sequence->hashed_pages + 1) * scheduler->config.page_tokens,")]),
    "hit_without_snapshot": ("a hit may end where no snapshot is", [
        ("scheduler_admit.c", "            whole = snapshot != RP_NO_SNAPSHOT;", "            snapshot = snapshot != RP_NO_SNAPSHOT ? snapshot : 0;")]),
    "snapshot_leak": ("a sequence that ends keeps its unproven snapshots", [
        ("scheduler_commit.c", "    rp_kv_snapshots_drop(&scheduler->snapshots, &sequence->pending_snapshots);\n", "")]),
    "snapshot_past_row": ("a snapshot is planned where the row does not come to", [
        ("scheduler_state.c", "position > (uint64_t)row->start + row->count ||",
         "position > (uint64_t)row->start + row->count + 1 ||")]),
    "closed_twice": ("a cancel is answered again after a stop", [
        ("scheduler_commit.c", "        rp_sched_close(scheduler, sequence, RP_FINISH_STOP, now_ns);",
         "        rp_sched_close(scheduler, sequence, RP_FINISH_STOP, now_ns);\n"
         "        if (atomic_load(&request->cancelled))\n"
         "            rp_sched_close_request(scheduler, request, 0, RP_FINISH_CANCELLED, now_ns);")]),
    "chunk_after_hit": ("the first chunk starts one token late after a hit", [
        ("scheduler_admit.c", "    sequence->planned_length = sequence->verified_length = hit_tokens;",
         "    sequence->planned_length = sequence->verified_length = hit_tokens + (hits > 0);")]),
    "last_token_not_recomputed": ("a prompt may be found whole", [
        ("scheduler_admit.c", "(request->prompt_count - 1) / page_tokens", "request->prompt_count / page_tokens")]),
    "partial_page_not_swapped": ("the page being filled is not swapped out", [
        ("scheduler_swap.c", "        for (uint32_t i = sequence->held[g].first; i < end; i++) {",
         "        for (uint32_t i = sequence->held[g].first; i < sequence->planned_length / scheduler->config.page_tokens; i++) {")]),
    "tail_token_wrong": ("a generated token is hashed in the wrong place", [
        ("scheduler_commit.c", "sequence->tail_tokens[position %", "sequence->tail_tokens[(position + 1) %")]),
    "host_page_leak": ("a sequence that ends while swapped keeps its host pages", [
        ("scheduler_commit.c", "                rp_kv_pool_release(&scheduler->host, held->table[--held->end], 0);",
         "                held->end--;")]),
    "no_rotation": ("the oldest decode rows always go first", [
        ("scheduler_plan.c", "    if (count <= limit)", "    if (true)")]),
    "hit_not_acquired": ("a page that was found is used without a reference", [
        ("scheduler_admit.c", "            rp_kv_pool_acquire(&scheduler->pool, page);",
         "            if (scheduler->pool.pages[page].state != RP_KV_CACHED)\n"
         "                rp_kv_pool_acquire(&scheduler->pool, page);")]),
    "one_token_too_many": ("max_tokens is passed by one", [
        ("scheduler_internal.h", "    return outputs >= sequence->max_tokens;",
         "    return outputs >= sequence->max_tokens + 1;")]),
    "event_room_ignored": ("rows are planned without room for their events", [
        ("scheduler_plan.c", "    uint64_t rows = taken < room ?",
         "    taken = 0, room = own_room;\n    uint64_t rows = taken < room ?")]),
    "dirty_not_zeroed": ("pages that held NaN are given out as they are", [
        ("scheduler_pages.c", "    if (scheduler->pool.pages[page].dirty && !overwritten)", "    if (false)")]),
    "generated_cached": ("pages that decode wrote are found by prompts", [
        ("scheduler_pages.c", "    if (scheduler->config.prefix_prompt_only)", "    if (false)")]),
    "window_passed_early": ("a page is given back while a token still sees it", [
        ("scheduler_pages.c", "                                          sequence->planned_length);",
         "                                          sequence->planned_length + 1);")]),
    "window_hit_too_short": ("a hit needs one page less than the window covers", [
        ("scheduler_admit.c", "                            pages * page_tokens);",
         "                            (pages + 1) * page_tokens);")]),
    "unproven_found": ("pages that left their window are found before their proof", [
        ("scheduler_pages.c", "index < clean ? 0 : sequence->age", "0")]),
    "group_mixed_up": ("pages of one group are found by another", [
        ("scheduler_pages.c", "rp_sched_group_hash(scheduler, sequence->chain, g)",
         "rp_sched_group_hash(scheduler, sequence->chain, scheduler->group_count - 1 - g)")]),
    "tenant_kept": ("a tenant counts sequences that are closed", [
        ("scheduler_tenants.c", "    tenant->admitted--;\n", "")]),
    "withheld_kept": ("a withheld row's sequence goes on", [
        ("scheduler_commit.c", "    if (result->flags & RP_SCHED_RESULT_WITHHELD) {",
         "    if (result->flags & RP_SCHED_RESULT_WITHHELD)\n        return;\n    if (false) {")]),
}


def main():
    if sys.argv[1:] == ["--list"]:
        print(";".join(MUTANTS), end="")
        return
    name, out = sys.argv[1:]
    what, edits = MUTANTS[name]
    lines = [f'const char rp_mutant_text[] = "{what}";\nconst int rp_mutant_has_bug = {int(bool(edits))};\n']
    for file in FILES:
        text = (ENGINE / file).read_text()
        for edited, old, new in edits:
            if edited != file:
                continue
            if text.count(old) != 1:
                sys.exit(f"scheduler_mutants.py: {name}: engine/{file} has {text.count(old)} times: {old}")
            text = text.replace(old, new)
        lines.append(f'#line 1 "engine/{file}"\n{text}\n')
    pathlib.Path(out).write_text("".join(lines))


main()
