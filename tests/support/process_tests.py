"""Which tests have the marker `process`: they start other processes, and `make test` lacks them.

One starts none, and takes minutes.

Folders, files and fixtures are named here, and few single tests. Each kind of process keeps one
test in `make test`.
"""

from collections.abc import Collection

FOLDERS = ("tests/chaos", "tests/conformance/clients", "tests/integration")
FILES = (
    "tests/backend/test_engine_grammar.py",  # their engines compile grammars in a process
    "tests/backend/test_engine_grammar_compiler.py",
    "tests/backend/test_server_responses_client.py",
    "tests/backend/test_server_tools_client.py",
    "tests/backend/test_engine_ranks.py",
    "tests/backend/test_engine_worker.py",
    "tests/backend/test_kernels_compile.py",
    "tests/backend/test_server_command.py",
    "tests/benchmarks/test_first_card.py",
    "tests/deploy/test_compose.py",
    "tests/deploy/test_container_scripts.py",
    "tests/deploy/test_dockerfile.py",
    "tests/deploy/test_docs_site.py",
    "tests/deploy/test_monitoring.py",
    "tests/deploy/test_package.py",
    "tests/deploy/test_release.py",
    "tests/deploy/test_verifier_package.py",
    "tests/embeddings/test_embeddings_allocation.py",
    "tests/embeddings/test_embeddings_lifecycle.py",
    "tests/embeddings/test_embeddings_qdrant_service.py",
)
TESTS = (
    "tests/backend/test_executor_warm_up.py::test_none_of_many_batches_compiles",
    (
        "tests/backend/test_engine_watchdog.py"
        "::test_the_real_engine_answers_when_idle_and_is_replaced_when_it_stands_still"
    ),
    "tests/backend/test_server_foreign_fields.py::test_the_real_engine_holds_to_a_guided_choice",
    (
        "tests/backend/test_server_kv_events.py"
        "::test_a_router_finds_the_blocks_of_a_prompt_that_the_real_engine_computed"
    ),
    "tests/backend/test_server_reasoning.py::test_a_qwen_model_thinks_before_a_grammar_unless_told_not_to",
    "tests/backend/test_server_reasoning.py::test_the_setting_decides",
    "tests/gateway/cli/test_calibrate.py::test_a_real_service_scores_pairs",
    "tests/gateway/cli/test_doctor.py::test_the_encoder_and_the_verifier_load",
    "tests/gateway/cli/test_doctor.py::test_torch_is_loaded_and_may_fail",
    (
        "tests/gateway/server/test_admin_api.py"
        "::test_while_the_store_is_frozen_each_call_ends_and_says_why"
    ),
)
FIXTURES = {
    "interpreter": "Triton's interpreter",
    "new_service": "embeddings",
    "qdrant_server": "Qdrant",
    "qdrant_url": "Qdrant",
    "redis_version": "Redis",
    "running_service": "embeddings",
    "verifying_service": "embeddings",
}
"""Fixtures that start a process, and which one."""
KEPT = {
    "chaos": "tests/chaos/test_chaos.py"
    "::test_a_fault_under_load_makes_no_answer_wrong_and_loses_none[upstream resets midway]",
    "embeddings": "tests/embeddings/test_embeddings_service.py"
    "::test_a_paraphrase_is_near_and_another_question_is_not",
    "engine": "tests/backend/test_server_command.py::test_serves_and_stops_cleanly",
    "gateway": "tests/integration/test_serve_process.py"
    "::test_a_paraphrase_is_a_semantic_hit_on_both_wires",
    "Qdrant": "tests/embeddings/test_embeddings_index_conformance.py::test_qdrant_over_the_network",
    "Redis": "tests/gateway/cache/test_store_redis.py::test_a_server_keeps_the_contract",
    "Triton's interpreter": "tests/backend/test_kernels_elementwise.py"
    "::test_keys_stay_beside_the_queries_where_prefill_reads_them",
}
"""The test of each kind that `make test` has, with all its parameters if none is named."""


def starts_processes(node_id: str, fixtures: Collection[str]) -> bool:
    """Tell whether a test starts other processes, by its id in pytest and the fixtures it uses."""
    file, test = node_id.partition("::")[0], node_id.partition("[")[0]
    return (
        file.startswith(tuple(f"{folder}/" for folder in FOLDERS))
        or file in FILES
        or test in TESTS
        or not FIXTURES.keys().isdisjoint(fixtures)
    )


def is_left_out(node_id: str, fixtures: Collection[str]) -> bool:
    """Tell whether ``make test`` lacks a test."""
    kept = not {node_id, node_id.partition("[")[0]}.isdisjoint(KEPT.values())
    return starts_processes(node_id, fixtures) and not kept
