/// @file
/// Views that keep their memory alive.
///
/// Thread safety: that of the view.
#pragma once

#include <memory>
#include <utility>

/// Marks a class in which all objects share ownership of the memory that they refer to. For such a class, g++ 14 and
/// later do not assume that a temporary object owns that memory. Instead, they check the expression that made the
/// object.
#if __has_cpp_attribute(gnu::no_dangling)
#define SHMTREE_NO_DANGLING [[gnu::no_dangling]]
#else
#define SHMTREE_NO_DANGLING
#endif

namespace shmtree {

/// A std::span, std::string_view or other view that shares ownership of its memory. Temporary objects return it, so
/// `for (float x : receiver.get().value().span<const float>())` is safe. It converts to the plain view, which shares
/// nothing and is valid only while another owner exists.
template <class View>
class SHMTREE_NO_DANGLING Held : public View {
 public:
  /// An empty view.
  Held() = default;
  /// A view of memory that `owner` keeps alive.
  Held(View view, std::shared_ptr<const void> owner) noexcept : View(std::move(view)), owner_(std::move(owner)) {}

 private:
  std::shared_ptr<const void> owner_{};
};

}  // namespace shmtree
