from backend.scheduler.budget import FixedBudget, OomBackoff, TokenBudget

MOST = TokenBudget(512, 16)


def after(cap, steps, num_decodes=4):
    for _ in range(steps):
        cap.observe(num_decodes, 0, 0.01)
    return cap.allow(num_decodes).max_tokens


def test_nothing_is_capped_before_memory_was_short():
    cap = OomBackoff(FixedBudget(MOST))
    assert cap.allow(16) == MOST
    assert after(cap, 1_000) == 512


def test_half_of_what_did_not_fit_is_allowed_until_it_fits():
    cap = OomBackoff(FixedBudget(MOST))
    assert cap.shrink(500, 10)
    assert cap.allow(4) == TokenBudget(250, 16)
    assert cap.shrink(250, 10)
    assert cap.allow(4).max_tokens == 125


def test_decoding_sequences_and_one_token_more_always_fit_the_allowance():
    cap = OomBackoff(FixedBudget(MOST))
    cap.shrink(40, 16)
    assert cap.allow(30).max_tokens == 31


def test_a_step_that_is_small_already_cannot_be_cut():
    cap = OomBackoff(FixedBudget(MOST))
    assert not cap.shrink(32, 1)
    assert not cap.shrink(200, 200)
    assert cap.allow(4) == MOST


def test_it_grows_again_when_that_goes_well_for_long_enough():
    cap = OomBackoff(FixedBudget(MOST))
    cap.shrink(400, 4)
    assert after(cap, 255) == 200
    assert after(cap, 1) == 400
    assert after(cap, 256) == 512
    assert after(cap, 1_000) == 512
