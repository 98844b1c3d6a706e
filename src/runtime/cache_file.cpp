// Reading and atomically replacing the small files of the cache folder, and where that folder is.
#include "runtime/cache_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace sparseloom::runtime {
namespace {

constexpr std::size_t kMostBytes = 64 << 10;

bool is_set(const char* value) { return value != nullptr && *value != '\0'; }

// A file descriptor that closes itself.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote > 0)
      done += static_cast<std::size_t>(wrote);
    else if (wrote == 0 || errno != EINTR)
      return false;
  }
  return true;
}

std::string reason_of(int error) { return std::generic_category().message(error); }

}  // namespace

std::string cache_folder(const char* own, const char* xdg, const char* home) {
  if (is_set(own)) return std::strcmp(own, "off") == 0 ? "" : own;
  if (is_set(xdg) && *xdg == '/') return std::string(xdg) + "/sparseloom";
  return is_set(home) ? std::string(home) + "/.cache/sparseloom" : "";
}

std::string cache_folder() {
  return cache_folder(std::getenv("SPARSELOOM_CACHE"), std::getenv("XDG_CACHE_HOME"), std::getenv("HOME"));
}

std::optional<std::string> read_small_file(const std::string& path) {
  const Descriptor file(
      ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // without O_NONBLOCK, a pipe would block it
  struct stat about;
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) return std::nullopt;
  std::string text(kMostBytes + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got == 0) break;
    if (got > 0)
      size += static_cast<std::size_t>(got);
    else if (errno != EINTR)
      return std::nullopt;
  }
  if (size > kMostBytes) return std::nullopt;
  text.resize(size);
  return text;
}

std::string replace_file(const std::string& folder, const std::string& name, const std::string& text) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return "cannot make " + folder + ": " + failed.message();
  static std::atomic<unsigned> count{0};  // so that two threads of one process write two files
  const std::string path = folder + "/" + name;
  const std::string part = path + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".part";
  // O_TRUNC replaces an existing file: only a process with the same id that died here can have left it.
  int error = 0;
  {
    const Descriptor file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (file.get() < 0) return "cannot write in " + folder + ": " + reason_of(errno);
    if (!write_all(file.get(), text)) error = errno;
  }
  if (error == 0 && ::rename(part.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return {};
  ::unlink(part.c_str());
  return "cannot write " + path + ": " + reason_of(error);
}

std::string fingerprint(const std::string& text) {
  // Offset basis and prime of 64-bit FNV-1a.
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace sparseloom::runtime
