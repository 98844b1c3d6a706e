// Small files that outlive the process: measured once, read by the next one. Losing one costs its measurement
// again, so nothing here throws for what a disk may do.
#pragma once

#include <optional>
#include <string>

namespace sparseloom::runtime {

/// The folder they lie in, by the XDG rules: `own` (SPARSELOOM_CACHE) when it is set, else `xdg`/sparseloom
/// when that is an absolute path, else `home`/.cache/sparseloom; empty when none of them is set, or `own` is
/// "off".
std::string cache_folder(const char* own, const char* xdg, const char* home);

/// cache_folder of this process's environment.
std::string cache_folder();

/// The content of a regular file of at most 64 KiB; nothing for any other.
std::optional<std::string> read_small_file(const std::string& path);

/// Makes `text` the whole content of folder/name, making the folder too. Readers and other writers see the
/// old file or the new one, never a part. Returns why that was not possible, empty when it was.
std::string replace_file(const std::string& folder, const std::string& name, const std::string& text);

/// Of 64 bits, FNV-1a, in hexadecimal: tells damaged files and different keys apart, and is no defence
/// against malice.
std::string fingerprint(const std::string& text);

}  // namespace sparseloom::runtime
