// A program of a user that has only the installed headers and library.
#include <shmtree/base/result.h>

#include <cstdio>

int main() {
  const std::string_view name = shmtree::name_of(shmtree::Code::kFull);
  std::printf("%.*s\n", static_cast<int>(name.size()), name.data());
  return name.empty() ? 1 : 0;
}
