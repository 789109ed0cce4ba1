#include "backend/cupti/cupti_match.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* A graph's id with one of its nodes; sorted by both. */
struct node {
    uint64_t node;
    uint32_t graph;
};

/* A graph as records name it. */
struct seen {
    uint32_t id, first, count; /* its nodes in `nodes` */
    uint32_t rank, instance;   /* of the record before; instance counts from 1 */
    uint32_t graph;            /* which one of ours; UINT32_MAX: in doubt */
};

struct matcher {
    struct node *nodes;
    uint32_t node_count;
    struct seen *graphs;
    uint32_t graph_count;
    uint32_t *last;      /* (node_count) instance in which the node was seen last */
    uint32_t *instances; /* (kernel_count) index into graphs of each replay seen, in order */
    uint32_t instance_count;
    uint64_t steps, backward; /* from one record of a graph to the next */
};

static int compare_nodes(const void *a_void, const void *b_void) {
    const struct node *a = a_void, *b = b_void;
    if (a->graph != b->graph)
        return a->graph < b->graph ? -1 : 1;
    return (a->node > b->node) - (a->node < b->node);
}

static int list_nodes(struct matcher *m, const struct rp_cupti_matching *from) {
    uint32_t count = 0;
    m->nodes = rp_alloc((from->kernel_count + (size_t)1) * sizeof *m->nodes);
    if (!m->nodes)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < from->kernel_count; i++)
        m->nodes[i] = (struct node){from->kernels[i].node, from->kernels[i].graph};
    qsort(m->nodes, from->kernel_count, sizeof *m->nodes, compare_nodes);
    for (uint32_t i = 0; i < from->kernel_count; i++)
        if (i == 0 || compare_nodes(&m->nodes[count - 1], &m->nodes[i]) != 0)
            m->nodes[count++] = m->nodes[i];
    m->node_count = count;
    return RP_OK;
}

static int list_graphs(struct matcher *m) {
    m->graphs = rp_calloc(m->node_count + (size_t)1, sizeof *m->graphs);
    m->last = rp_calloc(m->node_count + (size_t)1, sizeof *m->last);
    if (!m->graphs || !m->last)
        return RP_STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < m->node_count; i++) {
        if (i == 0 || m->nodes[i].graph != m->nodes[i - 1].graph)
            m->graphs[m->graph_count++] =
                (struct seen){.id = m->nodes[i].graph, .first = i, .graph = UINT32_MAX};
        m->graphs[m->graph_count - 1].count++;
    }
    return RP_OK;
}

static struct seen *find_graph(const struct matcher *m, const struct rp_cupti_kernel *kernel,
                               uint32_t *out_rank) {
    struct node key = {kernel->node, kernel->graph};
    const struct node *node =
        bsearch(&key, m->nodes, m->node_count, sizeof *m->nodes, compare_nodes);
    uint32_t at = (uint32_t)(node - m->nodes), low = 0, high = m->graph_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (m->graphs[middle].first <= at)
            low = middle;
        else
            high = middle;
    }
    *out_rank = at - m->graphs[low].first;
    return &m->graphs[low];
}

/* The replay of which this record is; dependent launch lets neighbors begin at one time, in either
 * order, and the kernels of two branches take turns. */
static void place(struct matcher *m, struct seen *graph, uint32_t rank,
                  struct rp_cupti_match *out) {
    uint32_t *last = &m->last[graph->first + rank];
    bool is_first = graph->instance == 0;
    bool starts_over =
        is_first || *last == graph->instance || graph->rank > rank + graph->count / 2;
    if (!is_first && !starts_over) {
        m->steps++;
        m->backward += rank < graph->rank;
    }
    if (starts_over) {
        m->instances[m->instance_count++] = (uint32_t)(graph - m->graphs);
        graph->instance = m->instance_count;
    }
    *last = graph->instance;
    graph->rank = rank;
    out->replay = graph->instance - 1;
    out->kernel = rank;
}

/* By order, where every launch was seen and each graph is one of ours throughout. */
static bool name_by_order(struct matcher *m, const struct rp_cupti_matching *from) {
    if (m->instance_count != from->replay_count)
        return false;
    for (uint32_t i = 0; i < m->instance_count; i++) {
        struct seen *graph = &m->graphs[m->instances[i]];
        uint32_t ours = from->replays[i];
        if (ours >= from->graph_count || graph->count > from->graph_kernels[ours] ||
            (graph->graph != UINT32_MAX && graph->graph != ours))
            return false;
        graph->graph = ours;
    }
    return true;
}

/* By their number of kernels, where only one of ours has it. */
static void name_by_size(struct matcher *m, const struct rp_cupti_matching *from) {
    for (uint32_t i = 0; i < m->graph_count; i++) {
        uint32_t found = UINT32_MAX, matches = 0;
        for (uint32_t g = 0; g < from->graph_count; g++)
            if (from->graph_kernels[g] == m->graphs[i].count) {
                found = g;
                matches++;
            }
        m->graphs[i].graph = matches == 1 ? found : UINT32_MAX;
    }
}

static void name_all(struct matcher *m, const struct rp_cupti_matching *from,
                     struct rp_cupti_match *out, uint32_t *out_unmatched) {
    bool in_order = name_by_order(m, from);
    if (!in_order)
        name_by_size(m, from);
    for (uint32_t i = 0; i < from->kernel_count; i++) {
        const struct seen *graph = &m->graphs[m->instances[out[i].replay]];
        out[i].graph = graph->graph;
        /* Where a node was never seen, later ranks are off by one. */
        if (graph->graph != UINT32_MAX && graph->count != from->graph_kernels[graph->graph])
            out[i].graph = UINT32_MAX;
        if (!in_order)
            out[i].replay = UINT32_MAX;
        *out_unmatched += out[i].graph == UINT32_MAX;
    }
}

int rp_cupti_match(const struct rp_cupti_matching *from, struct rp_cupti_match *out,
                   uint32_t *out_unmatched) {
    struct matcher m = {0};
    *out_unmatched = 0;
    m.instances = rp_alloc((from->kernel_count + (size_t)1) * sizeof *m.instances);
    int status = m.instances ? list_nodes(&m, from) : RP_STATUS_NO_MEMORY;
    if (status == RP_OK)
        status = list_graphs(&m);
    for (uint32_t i = 0; i < from->kernel_count && status == RP_OK; i++) {
        uint32_t rank;
        struct seen *graph = find_graph(&m, &from->kernels[i], &rank);
        place(&m, graph, rank, &out[i]);
    }
    if (status == RP_OK && (m.backward * 3 > m.steps || m.instance_count > from->replay_count))
        status = RP_STATUS_FORMAT;
    if (status == RP_OK)
        name_all(&m, from, out, out_unmatched);
    rp_free(m.nodes);
    rp_free(m.graphs);
    rp_free(m.last);
    rp_free(m.instances);
    return status;
}
