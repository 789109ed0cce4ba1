#include "metrics/diagnose.h"

#include "base/json_writer.h"

#include <stdio.h>
#include <string.h>

const char *const rp_verdicts[RP_VERDICT_COUNT] = {[RP_VERDICT_UNKNOWN] = "unknown",
                                                   [RP_VERDICT_STARVED] = "starved",
                                                   [RP_VERDICT_KV_LIMITED] = "kv_limited",
                                                   [RP_VERDICT_SLOT_LIMITED] = "slot_limited",
                                                   [RP_VERDICT_QUEUEING] = "queueing",
                                                   [RP_VERDICT_CPU_BOUND] = "cpu_bound",
                                                   [RP_VERDICT_LAUNCH_BOUND] = "launch_bound",
                                                   [RP_VERDICT_MEMORY_BOUND] = "memory_bound",
                                                   [RP_VERDICT_COMPUTE_BOUND] = "compute_bound"};

/* What each verdict means, and what to do about it. */
static const struct {
    const char *summary;
    const char *next[RP_DIAGNOSE_NEXT_MAX];
} advice[RP_VERDICT_COUNT] = {
    [RP_VERDICT_UNKNOWN] = {"there is not enough to judge by",
                            {"send load, and ask again",
                             "POST /debug/profile stamps every step of a session; --profile-every "
                             "stamps some always"}},
    [RP_VERDICT_STARVED] = {"most of the time there is no request to work on",
                            {"nothing holds the server back: send more, or more at once",
                             "is the load generator, or what lies between, the slower part? "
                             "reprise bench serve says"}},
    [RP_VERDICT_KV_LIMITED] =
        {"the KV pages are taken: requests wait for them or are preempted",
         {"pages of fewer bytes: --kv-cache-dtype fp8 or int8",
          "a larger pool: --gpu-memory-utilization or --kv-cache-memory-bytes",
          "lower max_tokens in requests: admission reserves for the longest answer"}},
    [RP_VERDICT_SLOT_LIMITED] = {"all slots are taken while KV pages are free",
                                 {"a larger --max-num-seqs",
                                  "more servers, if steps are already longer than wanted"}},
    [RP_VERDICT_QUEUEING] = {"requests wait although slots and pages are free",
                             {"is one client far ahead of the others? fair shares let the others "
                              "go first: GET /debug/requests?finish=open",
                              "a larger --max-num-batched-tokens lets more prompts into a step"}},
    [RP_VERDICT_CPU_BOUND] =
        {"there is work, and the device waits for the host",
         {"GET /debug/profile shows idle time by cause, GET /debug/trace when it happens",
          "give the engine and loop threads cores of their own",
          "--run-ahead 1, and clients that keep up with their streams"}},
    [RP_VERDICT_LAUNCH_BOUND] =
        {"most time goes into launches that are too small to use the device",
         {"more requests at once: a step of more rows costs little more",
          "fused kernels and captured graphs: without --disable-fusion and --enforce-eager",
          "GET /debug/profile?sort_by=calls shows which launches"}},
    [RP_VERDICT_MEMORY_BOUND] = {"weights and keys are read about as fast as memory gives them",
                                 {"more requests at once: they share the reading of the weights",
                                  "weights or pages of fewer bytes: --dtype, --kv-cache-dtype",
                                  "GET /debug/profile?sort_by=bytes shows what is read"}},
    [RP_VERDICT_COMPUTE_BOUND] =
        {"GEMMs run about as fast as the device computes",
         {"prefix caching, where prompts begin alike",
          "a smaller --max-num-batched-tokens keeps decoding steps short beside prompts",
          "weights in a format that computes faster"}},
};

static bool judge(struct rp_diagnosis *out, struct rp_evidence evidence) {
    RP_ASSERT(out->evidence_count < RP_DIAGNOSE_EVIDENCE_MAX);
    evidence.holds = (evidence.value >= evidence.threshold) == evidence.at_least;
    out->evidence[out->evidence_count++] = evidence;
    return evidence.holds;
}

/* Idle for the host while there was work. */
static double host_idle(const struct rp_diagnose_input *input) {
    static const enum rp_idle_cause causes[] = {RP_IDLE_PLAN, RP_IDLE_LAUNCH, RP_IDLE_RESULT,
                                                RP_IDLE_EMIT, RP_IDLE_CLIENT, RP_IDLE_START};
    double idle = 0.0;
    for (size_t i = 0; i < RP_ARRAY_COUNT(causes); i++)
        idle += input->idle_share[causes[i]];
    return idle;
}

/* What the device is bound by while it works. */
static enum rp_verdict find_limit(const struct rp_diagnose_input *input, struct rp_diagnosis *out) {
    double with_work = 1.0 - input->idle_share[RP_IDLE_NO_WORK];
    double host = with_work > 0.0 ? host_idle(input) / with_work : 0.0;
    double rest = input->memory_share + input->compute_share;
    bool host_bound = judge(
        out, (struct rp_evidence){"device idle for the host, while there was work", "share", host,
                                  RP_DIAGNOSE_HOST_SHARE, true, false, RP_VERDICT_CPU_BOUND});
    bool small = judge(out, (struct rp_evidence){"time in launches far below every peak", "share",
                                                 input->latency_share, RP_DIAGNOSE_SMALL_SHARE,
                                                 true, false, RP_VERDICT_LAUNCH_BOUND});
    double memory = rest > 0.0 ? input->memory_share / rest : 0.0;
    bool reads = judge(
        out, (struct rp_evidence){"of the other launches' time, in those bound by memory", "share",
                                  memory, 0.5, true, false, RP_VERDICT_MEMORY_BOUND});
    judge(out, (struct rp_evidence){"of the other launches' time, in those bound by GEMMs", "share",
                                    rest > 0.0 ? 1.0 - memory : 0.0, 0.5, true, false,
                                    RP_VERDICT_COMPUTE_BOUND});
    if (input->steps < RP_DIAGNOSE_STEPS_MIN)
        return RP_VERDICT_UNKNOWN;
    if (host_bound)
        return RP_VERDICT_CPU_BOUND;
    if (rest + input->latency_share <= 0.0)
        return RP_VERDICT_UNKNOWN;
    return small   ? RP_VERDICT_LAUNCH_BOUND
           : reads ? RP_VERDICT_MEMORY_BOUND
                   : RP_VERDICT_COMPUTE_BOUND;
}

void rp_diagnose(const struct rp_diagnose_input *input, struct rp_diagnosis *out) {
    memset(out, 0, sizeof *out);
    bool starved = judge(out, (struct rp_evidence){"time without a request to work on", "share",
                                                   input->idle_share[RP_IDLE_NO_WORK],
                                                   RP_DIAGNOSE_STARVED_SHARE, true, false,
                                                   RP_VERDICT_STARVED});
    double queue =
        input->running ? (double)input->waiting / input->running : (double)input->waiting;
    bool queueing =
        judge(out, (struct rp_evidence){"waiting requests, for each running one", "requests", queue,
                                        RP_DIAGNOSE_QUEUE_SHARE, true, false, RP_VERDICT_QUEUEING});
    bool preempts = judge(out, (struct rp_evidence){"sequences preempted in the window", "requests",
                                                    (double)input->preempted, 1, true, false,
                                                    RP_VERDICT_KV_LIMITED});
    bool swapped = judge(out, (struct rp_evidence){"requests swapped out now", "requests",
                                                   (double)input->swapped, 1, true, false,
                                                   RP_VERDICT_KV_LIMITED});
    bool no_pages =
        judge(out, (struct rp_evidence){"KV pages that are free or only cached", "share",
                                        input->pages_free_share, RP_DIAGNOSE_PAGES_SHARE, false,
                                        false, RP_VERDICT_KV_LIMITED});
    double taken = input->slots ? (double)input->running / input->slots : 0.0;
    bool no_slots = judge(out, (struct rp_evidence){"slots that are taken", "share", taken,
                                                    RP_DIAGNOSE_SLOTS_SHARE, true, false,
                                                    RP_VERDICT_SLOT_LIMITED});
    judge(out, (struct rp_evidence){"steps in the window", "steps", (double)input->steps,
                                    RP_DIAGNOSE_STEPS_MIN, false, false, RP_VERDICT_UNKNOWN});
    judge(out,
          (struct rp_evidence){"steps whose launches were timed", "steps",
                               (double)input->stamped_steps, 1, false, false, RP_VERDICT_UNKNOWN});
    enum rp_verdict limit = find_limit(input, out);
    bool kv_limited = preempts || swapped || (queueing && no_pages);
    out->verdict = starved                ? RP_VERDICT_STARVED
                   : kv_limited           ? RP_VERDICT_KV_LIMITED
                   : queueing && no_slots ? RP_VERDICT_SLOT_LIMITED
                   : queueing             ? RP_VERDICT_QUEUEING
                                          : limit;
    out->limit = starved ? RP_VERDICT_UNKNOWN : limit;
    out->summary = advice[out->verdict].summary;
    while (out->next_count < RP_DIAGNOSE_NEXT_MAX && advice[out->verdict].next[out->next_count]) {
        out->next[out->next_count] = advice[out->verdict].next[out->next_count];
        out->next_count++;
    }
}

/* ---- as JSON and text ----------------------------------------------------------------------- */

static void write_json_input(const struct rp_diagnose_input *input, struct rp_json *json) {
    rp_json_object_begin(json, "numbers");
    rp_json_double(json, "window_seconds", input->seconds);
    rp_json_uint(json, "steps", input->steps);
    rp_json_uint(json, "stamped_steps", input->stamped_steps);
    rp_json_double(json, "busy_share", input->busy_share);
    rp_json_object_begin(json, "idle_share");
    for (int cause = 0; cause < RP_IDLE_CAUSE_COUNT; cause++)
        rp_json_double(json, rp_idle_causes[cause], input->idle_share[cause]);
    rp_json_object_end(json);
    rp_json_uint(json, "running", input->running);
    rp_json_uint(json, "waiting", input->waiting);
    rp_json_uint(json, "swapped", input->swapped);
    rp_json_uint(json, "preempted", input->preempted);
    rp_json_uint(json, "slots", input->slots);
    rp_json_double(json, "pages_free_share", input->pages_free_share);
    rp_json_double(json, "step_seconds", input->step_seconds);
    rp_json_double(json, "host_seconds_per_step", input->host_seconds);
    rp_json_double(json, "tokens_per_step", input->tokens_per_step);
    rp_json_double(json, "memory_bound_share", input->memory_share);
    rp_json_double(json, "compute_bound_share", input->compute_share);
    rp_json_double(json, "latency_bound_share", input->latency_share);
    rp_json_double(json, "bandwidth_used_share", input->bandwidth_used);
    rp_json_double(json, "flops_used_share", input->flops_used);
    rp_json_object_end(json);
}

void rp_diagnosis_write_json(const struct rp_diagnose_input *input,
                             const struct rp_diagnosis *diagnosis, struct rp_json *json) {
    rp_json_string(json, "verdict", rp_verdicts[diagnosis->verdict]);
    rp_json_string(json, "device_limit", rp_verdicts[diagnosis->limit]);
    rp_json_string(json, "summary", diagnosis->summary);
    rp_json_array_begin(json, "evidence");
    for (uint32_t i = 0; i < diagnosis->evidence_count; i++) {
        const struct rp_evidence *evidence = &diagnosis->evidence[i];
        rp_json_object_begin(json, NULL);
        rp_json_string(json, "what", evidence->what);
        rp_json_double(json, "value", evidence->value);
        rp_json_string(json, "compared", evidence->at_least ? ">=" : "<");
        rp_json_double(json, "threshold", evidence->threshold);
        rp_json_string(json, "unit", evidence->unit);
        rp_json_bool(json, "holds", evidence->holds);
        rp_json_string(json, "speaks_for", rp_verdicts[evidence->speaks_for]);
        rp_json_object_end(json);
    }
    rp_json_array_end(json);
    rp_json_array_begin(json, "next");
    for (uint32_t i = 0; i < diagnosis->next_count; i++)
        rp_json_string(json, NULL, diagnosis->next[i]);
    rp_json_array_end(json);
    write_json_input(input, json);
}

void rp_diagnosis_write_text(const struct rp_diagnose_input *input,
                             const struct rp_diagnosis *diagnosis, struct rp_buffer *out) {
    rp_buffer_printf(out, "verdict     %s: %s\n", rp_verdicts[diagnosis->verdict],
                     diagnosis->summary);
    if (diagnosis->limit && diagnosis->limit != diagnosis->verdict)
        rp_buffer_printf(out, "the device  %s: %s\n", rp_verdicts[diagnosis->limit],
                         advice[diagnosis->limit].summary);
    rp_buffer_printf(
        out,
        "window      %.1f s, %llu steps of %.1f tokens and %.3f ms (host %.3f ms), busy %.1f %%\n",
        input->seconds, (unsigned long long)input->steps, input->tokens_per_step,
        input->step_seconds * 1e3, input->host_seconds * 1e3, 100.0 * input->busy_share);
    rp_buffer_printf(
        out,
        "requests    %u running of %u, %u waiting, %u swapped; %llu preempted; %.0f %% of pages "
        "free\n",
        input->running, input->slots, input->waiting, input->swapped,
        (unsigned long long)input->preempted, 100.0 * input->pages_free_share);
    if (input->bandwidth_used > 0 || input->flops_used > 0)
        rp_buffer_printf(out, "of peaks    %.1f %% of read bandwidth, %.1f %% of FLOP/s\n",
                         100.0 * input->bandwidth_used, 100.0 * input->flops_used);
    rp_buffer_puts(out, "evidence\n");
    for (uint32_t i = 0; i < diagnosis->evidence_count; i++) {
        const struct rp_evidence *evidence = &diagnosis->evidence[i];
        bool share = strcmp(evidence->unit, "share") == 0;
        rp_buffer_printf(out, "  %s %-56s %8.2f%s %s %g%s  %s\n", evidence->holds ? "*" : " ",
                         evidence->what, share ? 100.0 * evidence->value : evidence->value,
                         share ? " %" : "  ", evidence->at_least ? ">=" : "< ",
                         share ? 100.0 * evidence->threshold : evidence->threshold,
                         share ? " %" : "", rp_verdicts[evidence->speaks_for]);
    }
    rp_buffer_puts(out, "next\n");
    for (uint32_t i = 0; i < diagnosis->next_count; i++)
        rp_buffer_printf(out, "  %u. %s\n", i + 1, diagnosis->next[i]);
}
