// Optimistic pins of a Latest's readers (Ring::read_block, HolderTable::begin_while) against a publisher that removes
// the version (Ring::write, ReferenceList, Reclaimer). A reader never uses a free block, and the block of the
// overwritten version is free when both are done.
#include "latest_ring.h"

namespace {

using namespace model;

void read_both() {
  read(kNew);
  read(kOld);
}

}  // namespace

void model::on_free(BlockId id) {
  data[id.index()][0] = 7;  // the next use of the block
}

int main() {
  set_up_latest();
  model::in_threads<publish, read_both>();
  check_old_is_free();
}
