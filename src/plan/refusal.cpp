// Refusals as text.
#include "sparseloom/refusal.h"

#include <string_view>

namespace sparseloom {

std::string Refusal::text() const {
  std::string result;
  std::string_view rest = text_ != nullptr ? text_ : "";
  for (const Word& word : words_) {
    const std::size_t place = rest.find("{}");
    if (place == std::string_view::npos) break;
    result += rest.substr(0, place);
    result += word.name != nullptr ? word.name : std::to_string(word.number);
    rest.remove_prefix(place + 2);
  }
  return result.append(rest);
}

}  // namespace sparseloom
