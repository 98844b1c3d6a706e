// Attention over kept blocks on the CPU: every row against sums element by element, the transposed lists, and
// what is refused.
#include <gtest/gtest.h>

#include <string>

#include "core/expect_error.h"
#include "ops/attention_case.h"

namespace sparseloom::testing {
namespace {

using test::expect_error;

void expect_near(const char* name, const std::vector<float>& actual, const std::vector<double>& exact) {
  for (std::size_t i = 0; i < exact.size(); ++i) {
    if (std::isinf(exact[i]) && exact[i] == actual[i]) continue;
    ASSERT_NEAR(actual[i], exact[i], 2e-5) << name << " at " << i;
  }
}

std::vector<AttentionCase> cases() {
  return {{128, 128, 64, 64, false},   {100, 150, 64, 64, true},     {150, 100, 72, 64, true},
          {130, 200, 128, 128, false}, {1, 70, 64, 64, false, 2, 1}, {65, 64, 5, 64, true, 1, 1}};
}

TEST(AttentionBlocks, OfEveryRowIsThatOfSumsElementByElement) {
  for (AttentionCase& c : std::vector(cases())) {
    const AttentionAnswer exact(c);
    const auto plan = plan_attention(c.problem, Executor::serial());
    for (const Candidate& row : plan->candidates) {
      if (!row.refusal.empty()) continue;
      const std::string name(row.kernel);
      calling([&] { return "block_attention " + name + " " + block_attention::Attention::print(c.problem); });
      c.out.assign(c.out.size(), NAN);
      c.lse.assign(c.lse.size(), NAN);
      c.forward(Executor::pool(2), name);
      expect_near(name.c_str(), c.out, exact.out);
      expect_near("lse", c.lse, exact.lse);
    }
  }
}

TEST(AttentionBlocks, GradientsOfEveryRowAreThoseOfSumsElementByElement) {
  for (AttentionCase& c : std::vector(cases())) {
    const AttentionAnswer exact(c);
    c.forward(Executor::serial());
    c.transpose(Executor::serial());
    c.problem.direction = block_attention::Direction::backward;
    const auto plan = plan_attention(c.problem, Executor::serial());
    for (const Candidate& row : plan->candidates) {
      if (!row.refusal.empty()) continue;
      const std::string name(row.kernel);
      calling([&] { return "block_attention " + name + " " + block_attention::Attention::print(c.problem); });
      for (std::vector<float>* gradient : {&c.dq, &c.dk, &c.dv}) gradient->assign(gradient->size(), NAN);
      c.backward(Executor::pool(2), name);
      expect_near((name + " dq").c_str(), c.dq, exact.dq);
      expect_near((name + " dk").c_str(), c.dk, exact.dk);
      expect_near((name + " dv").c_str(), c.dv, exact.dv);
      const auto dq = c.dq, dk = c.dk, dv = c.dv;
      c.backward(Executor::serial(), name);
      EXPECT_TRUE(dq == c.dq && dk == c.dk && dv == c.dv) << name;
    }
  }
}

TEST(AttentionBlocks, ListsOfKeysAreThoseOfQueriesTransposed) {
  AttentionCase c(700, 500, 64, 64, false);
  c.indices[static_cast<std::size_t>(c.kv_blocks)] |= block_attention::Lists::kPartial;
  c.transpose(Executor::serial());
  std::int64_t entries = 0, partial = 0;
  for (std::int64_t list = 0; list < c.problem.heads * c.kv_blocks; ++list) {
    std::int32_t before = -1;
    for (std::int32_t n = 0; n < c.key_counts[static_cast<std::size_t>(list)]; ++n, ++entries) {
      const std::int32_t code = c.key_indices[static_cast<std::size_t>(list * c.q_blocks + n)];
      const std::int32_t block = code & ~block_attention::Lists::kPartial;
      partial += code != block;
      EXPECT_GT(block, before);
      before = block;
      EXPECT_TRUE(c.kept(list / c.kv_blocks, std::int64_t{block} * 64, list % c.kv_blocks * 64) ||
                  code != block);
    }
  }
  EXPECT_EQ(partial, 1);
  std::int64_t expected = 0;
  for (const std::int32_t count : c.counts) expected += count;
  EXPECT_EQ(entries, expected);
}

TEST(AttentionBlocks, RefusesWhatNoAttentionHas) {
  const AttentionCase good(128, 128, 64, 64, false);
  const auto refuse = [&](std::initializer_list<std::string> words, auto change) {
    expect_error("plan", words, [&] {
      block_attention::Problem problem = good.problem;
      change(problem);
      plan_attention(problem, Executor::serial());
    });
  };
  using P = block_attention::Problem;
  refuse({"int8"}, [](P& p) { p.dtype = DType::i8; });
  refuse({"a multiple of those of k", "4 and 3"}, [](P& p) { p.kv_heads = 3; });
  refuse({"64 or 128", "32 x 64"}, [](P& p) { p.q_block = 32; });
  refuse({"31 bits", "-1"}, [](P& p) { p.q_tokens = -1; });
  refuse({"head size"}, [](P& p) { p.head_dim = 0; });
  refuse({"in backward alone"}, [](P& p) { p.lse_gradient = true; });
  refuse({"supports head sizes up to 256"}, [](P& p) { p.head_dim = 257; });
}

TEST(AttentionBlocks, RefusesOperandsThatAreNotThePlans) {
  AttentionCase c(128, 128, 64, 64, false);
  const Executor serial = Executor::serial();
  const auto plan = plan_attention(c.problem, serial);
  const auto refuse = [&](std::initializer_list<std::string> words, auto change) {
    expect_error("attention", words, [&] {
      block_attention::Args args = c.args();
      change(args);
      attention(*plan, args, {}, serial);
    });
  };
  using A = block_attention::Args;
  refuse({"memory behind q"}, [](A& a) { a.q.data = nullptr; });
  refuse({"memory behind lse"}, [](A& a) { a.lse = nullptr; });
  refuse({"2 lists of queries"}, [](A& a) { a.of_queries.lists = 3; });
  refuse({"a capacity of 2"}, [](A& a) { a.of_queries.capacity = 3; });
  const std::int32_t starts[] = {0, 128, 256};
  refuse({"no starts, as planned"}, [&](A& a) { a.q_starts = a.kv_starts = starts; });
  refuse({"no documents, as planned"}, [&](A& a) { a.q_documents = a.kv_documents = starts; });
  expect_error("attention_gradient", {"a plan for backward"},
               [&] { attention_gradient(*plan, c.args(), {}, serial); });
  c.counts[1] = 3;
  refuse({"0 to 2 entries", "a count of 3 in list 1"}, [](A&) {});
  c.counts[1] = 2, c.indices[2] = 1, c.indices[3] = 0;
  refuse({"ascending blocks", "0 after 1"}, [](A&) {});
  c.indices[2] = 0, c.indices[3] = 2;
  refuse({"blocks 0 to 1"}, [](A&) {});
  c.indices[3] = 1 | block_attention::Lists::kPartial;
  refuse({"no partial blocks"}, [](A&) {});
  expect_error("transpose_lists", {"memory behind counts"},
               [&] { transpose_lists(c.of_queries(), 4, 2, nullptr, c.key_indices.data(), serial); });
}

TEST(AttentionBlocks, PlansSayWhatTheyRun) {
  AttentionCase c(128, 128, 64, 64, true);
  const std::string text = plan_attention(c.problem, Executor::serial())->describe();
  EXPECT_NE(text.find("forward f32 batch=2 heads=4 kv_heads=2 q=128 kv=128 head_dim=64 block=64x64"),
            std::string::npos)
      << text;
  block_attention::Problem other = c.problem;
  other.causal = false;
  EXPECT_NE(block_attention::Attention::key(c.problem), block_attention::Attention::key(other));
}

}  // namespace
}  // namespace sparseloom::testing
