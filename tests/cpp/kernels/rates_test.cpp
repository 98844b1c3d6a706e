// Rates are kept on disk: read back by the next process, and measured anew whatever else lies there.
#include "kernels/bsr_linear/cpu/rates.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/machine_rates.h"
#include "kernels/processes.h"
#include "runtime/cache_file.h"
#include "runtime/cpu.h"
#include "sparseloom/ops.h"

namespace sparseloom::kernels {
namespace {

namespace fs = std::filesystem;
using runtime::Isa;

class RatesOnDisk : public ::testing::Test {
 protected:
  RatesOnDisk() {
    std::string name = (fs::temp_directory_path() / "rates-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~RatesOnDisk() override {
    std::error_code ignored;
    fs::permissions(folder_, fs::perms::owner_all, ignored);
    fs::remove_all(folder_, ignored);
  }

  KnownRates known() const { return known_rates(folder_, isa_); }
  fs::path file() const { return fs::path(folder_) / rates_file(rates_key(isa_)); }
  void put(const std::string& text) const { std::ofstream(file(), std::ios::binary) << text; }
  static bool was_read(const KnownRates& rates) { return rates.origin.starts_with("read from "); }
  // What is not usable is replaced by a file that is.
  void expect_measured_anew() const {
    EXPECT_TRUE(known().origin.starts_with("measured and kept in ")) << known().origin;
    EXPECT_TRUE(was_read(known())) << known().origin;
  }

  std::string folder_;
  Isa isa_ = runtime::active_isa();
};

TEST_F(RatesOnDisk, AreMeasuredOnceAndReadAfterwards) {
  fs::remove(folder_);  // the folder is made too
  const KnownRates first = known(), second = known();
  EXPECT_EQ(first.origin, "measured and kept in " + file().string());
  EXPECT_EQ(second.origin, "read from " + file().string());
  for (const RateField& field : rate_fields())
    EXPECT_EQ(first.rates.*field.rate, second.rates.*field.rate) << field.name;
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1) << "a part file was left behind";
}

TEST_F(RatesOnDisk, DamagedFilesAreMeasuredAnew) {
  const std::string key = rates_key(isa_), good = rates_text(known().rates, key);
  ASSERT_TRUE(parse_rates(good, key).has_value());
  std::vector<std::string> damaged = {"",
                                      "\n",
                                      "sparseloom rates 3\n",
                                      std::string(1 << 20, 'x'),
                                      std::string(300, '\0'),
                                      good + good,
                                      good.substr(1),
                                      "sparseloom rates 4" + good.substr(18)};
  for (std::size_t cut = 1; cut < good.size(); cut += 7) damaged.push_back(good.substr(0, cut));
  for (std::size_t at = 0; at < good.size(); at += 5) {
    damaged.push_back(good);
    damaged.back()[at] ^= 1;
  }
  for (const std::string& text : damaged)
    EXPECT_FALSE(parse_rates(text, key).has_value()) << text.substr(0, 200);
  for (const std::string& text : {damaged[0], damaged[3], damaged[9], damaged.back()}) {
    put(text);
    expect_measured_anew();
  }
}

// What a version without int8 wrote, well signed, under a key that happens to be this one's.
TEST_F(RatesOnDisk, OfTheFormatWithoutInt8AreMeasuredAnew) {
  const std::string key = rates_key(isa_);
  std::string old = "sparseloom rates 1\nkey " + key + "\n";
  for (const RateField& field : rate_fields())
    if (!std::string(field.name).starts_with("i8_")) old += std::string(field.name) + " 100000000000\n";
  put(old + "sum " + runtime::fingerprint(old) + "\n");
  expect_measured_anew();
}

TEST_F(RatesOnDisk, ImpossibleRatesAreMeasuredAnewThoughWellSigned) {
  const std::string key = rates_key(isa_);
  for (const double rate : {-1.0, 3.0, 1e300, double{INFINITY}, double{NAN}}) {
    plan::MachineRates rates;
    rates.copy_bytes = rate;
    EXPECT_FALSE(parse_rates(rates_text(rates, key), key).has_value()) << rate;
  }
}

TEST_F(RatesOnDisk, OfZeroAreMeasuredAnewWhereThisCpuHasOne) {
  plan::MachineRates rates = known().rates;
  rates.copy_bytes = 0;
  put(rates_text(rates, rates_key(isa_)));
  expect_measured_anew();
}

TEST_F(RatesOnDisk, OfAnotherCpuAreNotUsed) {
  const std::string other = "x86_64, Another CPU, " + rates_key(isa_);
  EXPECT_NE(rates_file(other),
            rates_file(rates_key(isa_)));  // each kind of CPU has its file in a shared home folder
  plan::MachineRates rates;
  rates.copy_bytes = 1e9;
  put(rates_text(rates, other));  // brought under this CPU's name, by a copied folder
  expect_measured_anew();
}

TEST_F(RatesOnDisk, OfAnotherInstructionSetHaveAFileOfTheirOwn) {
  EXPECT_NE(rates_key(Isa::generic), rates_key(Isa::avx2));
  const KnownRates generic = known_rates(folder_, Isa::generic);
  for (const RateField& field : rate_fields())
    EXPECT_EQ(generic.rates.*field.rate > 0, std::string(field.name) == "copy_bytes") << field.name;
}

TEST_F(RatesOnDisk, NothingKeptWhereNothingCanBeWritten) {
  EXPECT_EQ(known_rates("", isa_).origin, "measured, not kept: no cache folder (SPARSELOOM_CACHE)");
  const std::string below_a_file = folder_ + "/plain/deeper";
  std::ofstream(folder_ + "/plain") << "a file";
  const KnownRates rates = known_rates(below_a_file, isa_);
  EXPECT_TRUE(rates.origin.starts_with("measured, not kept: cannot make " + below_a_file)) << rates.origin;
  EXPECT_GT(rates.rates.copy_bytes, 1e6);
  EXPECT_TRUE(known_rates("/proc/nowhere", isa_).origin.starts_with("measured, not kept: "))
      << "the kernel's own read-only folder";
  if (::geteuid() != 0) {  // root writes anywhere
    fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_TRUE(known().origin.starts_with("measured, not kept: cannot write in " + folder_))
        << known().origin;
  }
}

// Shared folders: whoever may write there could have put rates that make every plan slow.
TEST_F(RatesOnDisk, FilesThatOthersCouldHaveWrittenAreIgnoredInWords) {
  const std::string good = rates_text(known().rates, rates_key(isa_));
  const auto expect_ignored = [&](const std::string& why) {
    const std::string origin = known().origin;
    EXPECT_EQ(origin, "measured and kept in " + file().string() +
                          "; ignored what was there: " + file().string() + " " + why);
    EXPECT_TRUE(was_read(known())) << known().origin;
  };
  fs::permissions(file(), fs::perms::others_write, fs::perm_options::add);
  expect_ignored("may be written by other users");
  const std::string elsewhere = folder_ + "/elsewhere";
  std::ofstream(elsewhere) << good;
  fs::remove(file());
  fs::create_symlink(elsewhere, file());
  expect_ignored("is a link, which is not followed");
  EXPECT_FALSE(fs::is_symlink(file()));
  if (::geteuid() != 0) GTEST_SKIP() << "only root may give a file to another user";
  ASSERT_EQ(::chown(file().c_str(), 12345, 12345), 0);
  expect_ignored("belongs to another user (id 12345)");
}

TEST_F(RatesOnDisk, PartsHaveNamesThatNobodyForeseesAndNothingIsOpenedThatIsThere) {
  // The names of the first parts that were once written: with a pipe there, the first plan did not return.
  const std::string old = file().string() + "." + std::to_string(::getpid()) + "-";
  for (int count = 0; count < 512; ++count)
    ASSERT_EQ(::mkfifo((old + std::to_string(count) + ".part").c_str(), 0600), 0);
  ::alarm(60);  // instead of waiting for ever
  expect_measured_anew();
  ::alarm(0);
}

TEST_F(RatesOnDisk, FolderAndFileAreForTheirUserAlone) {
  const std::string deeper = folder_ + "/a/b";
  ASSERT_TRUE(runtime::replace_file(deeper, "name", "text").empty());
  for (const char* made : {"/a", "/a/b"})
    EXPECT_EQ(fs::status(folder_ + made).permissions(), fs::perms::owner_all) << made;
  EXPECT_EQ(fs::status(deeper + "/name").permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(RatesOnDisk, AFolderOrAPipeInThePlaceOfTheFileIsNoHang) {
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  EXPECT_EQ(known().origin, "measured and kept in " + file().string() + "; ignored what was there: " +
                                file().string() + " is no regular file");  // the rename replaces it
  EXPECT_TRUE(was_read(known())) << known().origin;
  fs::remove(file());
  fs::create_directory(file());
  EXPECT_TRUE(known().origin.starts_with("measured, not kept: cannot write " + file().string()))
      << known().origin;
}

TEST_F(RatesOnDisk, ProcessesThatStartTogetherSeeWholeFilesOnly) {
  const std::string key = rates_key(isa_);
  const plan::MachineRates measured = known().rates;
  testing::expect_of_processes(4, [&](int child) {
    bool whole = true;
    for (int i = 0; i < 200; ++i) {
      plan::MachineRates rates = measured;
      rates.copy_bytes = 1e9 + child;
      whole &= runtime::replace_file(folder_, file().filename().string(), rates_text(rates, key)).empty();
      const auto text = runtime::read_small_file(file().string()).text;
      whole &= text.has_value() && parse_rates(*text, key).has_value();
    }
    return whole;
  });
  EXPECT_TRUE(was_read(known()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST(CacheFolder, FollowsTheEnvironment) {
  using runtime::cache_folder;
  EXPECT_EQ(cache_folder("/own", "/xdg", "/home/me"), "/own");
  EXPECT_EQ(cache_folder("off", "/xdg", "/home/me"), "");
  EXPECT_EQ(cache_folder("", "/xdg", "/home/me"), "/xdg/sparseloom");
  EXPECT_EQ(cache_folder(nullptr, "relative", "/home/me"),
            "/home/me/.cache/sparseloom");  // XDG: not absolute, so ignored
  EXPECT_EQ(cache_folder(nullptr, nullptr, ""), "");
  EXPECT_EQ(cache_folder(nullptr, nullptr, nullptr), "");
}

TEST(CpuIdentity, HoldsWhatChangesSpeed) {
  const std::string identity = runtime::cpu_identity();
  EXPECT_EQ(identity, runtime::cpu_identity());
  EXPECT_EQ(identity.find('\n'), std::string::npos);
#if defined(__x86_64__)
  EXPECT_NE(identity.find(runtime::cpu_name()), std::string::npos) << identity;
#endif
  EXPECT_EQ(runtime::cpuinfo_identity(
                "processor\t: 0\nmicrocode\t: 0x2b\nflags\t: a b\n\nprocessor\t: 1\nmicrocode\t: 0x9\n"),
            ", microcode 0x2b");
  EXPECT_EQ(
      runtime::cpuinfo_identity("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\nempty\t:\n: odd\nmicrocode\n"),
      ", CPU implementer 0x41, CPU part 0xd0c");
  EXPECT_EQ(runtime::cpuinfo_identity(""), "");
}

// What a plan was decided by stands in it.
TEST(MachineLine, StandsInThePlansDescription) {
  const BlockIndex index(pattern::full(64, 64, {32, 32}));
  const auto plan = make_plan(describe(index.view(), DType::f32, Direction::forward, 16), index.view(),
                              Executor::serial(), "reference");
  const std::string text = plan->describe();
  EXPECT_NE(text.find(std::string("on ") + runtime::name_of(runtime::active_isa())), std::string::npos)
      << text;
  EXPECT_NE(text.find("copy "), std::string::npos) << text;
  EXPECT_NE(text.find("rates " + machine_rates_origin()), std::string::npos) << text;
  EXPECT_EQ(text.find("forced by SPARSELOOM_ISA") != std::string::npos, !runtime::forced_isa().empty())
      << text;
  const std::string info = info_json();
  for (const RateField& field : rate_fields())
    EXPECT_NE(info.find('"' + std::string(field.name) + "\": "), std::string::npos) << field.name;
}

}  // namespace
}  // namespace sparseloom::kernels
