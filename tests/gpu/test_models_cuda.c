/* Goal: whole models on a GPU have the CPU's numbers, and a row's bits depend on that row alone.
 * Method: models_cases.h with head dims with and without tensor cores, sizes that are not multiples
 * of 64, windows, biases, norms of q and k, sinks, layers that differ. Other programs have the
 * other families, 8 and 4 bits, and experts. */
#include "tests/gpu/model_case.h"

static const struct model_case model_cases[] = {
    {"llama bf16 64", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0, .tied = true},
    {"llama f32 8", RP_FAMILY_LLAMA, RP_DTYPE_F32, 40, 88, 2, 5, 1, 8, 97, 0, .tied = false},
    {"llama bf16 128", RP_FAMILY_LLAMA, RP_DTYPE_BF16, 1024, 1408, 2, 8, 2, 128, 512, 0,
     .tied = false},
    {"llama f32 64", RP_FAMILY_LLAMA, RP_DTYPE_F32, 192, 320, 2, 3, 3, 64, 256, 0, .tied = true},
    {"mistral bf16 128", RP_FAMILY_MISTRAL, RP_DTYPE_BF16, 328, 456, 2, 4, 1, 128, 331, 40,
     .tied = false},
    {"mistral f32 40", RP_FAMILY_MISTRAL, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 7,
     .tied = true},
    {"qwen2 bf16 64", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 896, 1216, 1, 14, 2, 64, 384, 0,
     .tied = true},
    {"qwen2 bf16 40", RP_FAMILY_QWEN2, RP_DTYPE_BF16, 200, 264, 2, 5, 5, 40, 209, 0, .tied = false},
    {"qwen3 bf16 128", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 256, 768, 2, 8, 2, 128, 320, 0,
     .tied = true},
    {"qwen3 bf16 8", RP_FAMILY_QWEN3, RP_DTYPE_BF16, 72, 104, 2, 6, 2, 8, 97, 33, .tied = false},
    {"qwen3 f32 128", RP_FAMILY_QWEN3, RP_DTYPE_F32, 200, 264, 2, 2, 1, 128, 200, 0, .tied = false},
    {"gemma2 bf16 256", RP_FAMILY_GEMMA2, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 256, 320, 40,
     .tied = true},
    {"gemma2 f32 24", RP_FAMILY_GEMMA2, RP_DTYPE_F32, 120, 200, 3, 3, 1, 24, 131, 7, .tied = true},
    {"granite bf16 64", RP_FAMILY_GRANITE, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 64, 320, 0,
     .tied = true},
    {"olmo3 bf16 128", RP_FAMILY_OLMO3, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 40,
     .tied = false},
    {"smollm3 f32 40", RP_FAMILY_SMOLLM3, RP_DTYPE_F32, 120, 200, 2, 3, 1, 40, 131, 0,
     .tied = true},
    {"ministral3 bf16 128", RP_FAMILY_MINISTRAL3, RP_DTYPE_BF16, 256, 512, 2, 4, 2, 128, 320, 0,
     .tied = false},
    {"stablelm bf16 64", RP_FAMILY_STABLELM, RP_DTYPE_BF16, 256, 512, 2, 4, 4, 64, 320, 0,
     .tied = false},
    {"gemma3 bf16 256", RP_FAMILY_GEMMA3, RP_DTYPE_BF16, 256, 512, 3, 4, 1, 256, 320, 40,
     .tied = true},
    {"gemma4 bf16 256", RP_FAMILY_GEMMA4, RP_DTYPE_BF16, 256, 512, 4, 4, 2, 256, 320, 7,
     .tied = true},
    {"sinks bf16 64", RP_FAMILY_MINISTRAL, RP_DTYPE_BF16, 256, 512, 4, 8, 1, 64, 320, 40,
     .tied = false, .sinks = true},
};

#include "tests/gpu/models_cases.h"

/* Layer 1 has twice as many heads of half the columns; layer 2 reads K and V of layer 0. */
static void mix_layers(struct rp_program *program) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < program->op_count; i++) {
        struct rp_op op = program->ops[i];
        if (op.layer == 2 && op.kind == RP_OP_KV_WRITE) {
            program->sample_begin--;
            continue;
        }
        if (op.layer == 2 && op.kind == RP_OP_ATTENTION)
            op.u.attention.kv_back = 2;
        if (op.layer == 1 && op.kind == RP_OP_ROPE) {
            op.u.rope.heads *= 2;
            op.u.rope.head_dim /= 2;
            op.u.rope.rotary_dim /= 2;
        } else if (op.layer == 1 && op.kind == RP_OP_KV_WRITE) {
            op.u.kv_write.kv_heads *= 2;
            op.u.kv_write.head_dim /= 2;
        } else if (op.layer == 1 && op.kind == RP_OP_ATTENTION) {
            op.u.attention.heads *= 2;
            op.u.attention.kv_heads *= 2;
            op.u.attention.head_dim /= 2;
        }
        program->ops[kept++] = op;
    }
    assert_int_equal(kept, program->op_count - 1);
    program->op_count = kept;
}

static void test_layers_may_differ_in_heads_and_share_pages(void **state) {
    static const struct model_case cases[] = {
        {"mixed layers bf16", RP_FAMILY_MINISTRAL, RP_DTYPE_BF16, 256, 512, 4, 4, 2, 128, 320, 40,
         .tied = false},
        {"mixed layers f32", RP_FAMILY_MINISTRAL, RP_DTYPE_F32, 96, 200, 4, 4, 2, 48, 131, 33,
         .tied = false},
    };
    (void)state;
    skip_when_tiny();
    program_edit = mix_layers;
    for (uint32_t i = 0; i < RP_ARRAY_COUNT(cases); i++) {
        make_truth(&cases[i]);
        check_cpu();
        check_graphs();
        close_way();
    }
}

RP_GPU_TEST_MAIN(NULL, NULL, MODEL_TESTS,
                 MODEL_TEST(test_layers_may_differ_in_heads_and_share_pages))
