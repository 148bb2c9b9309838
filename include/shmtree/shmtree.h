/// @file
/// All of shmtree except array.h and capnp.h, which need xtensor and Cap'n Proto: include these by name.
///
/// Reading order: base/result.h, base/held.h, value.h, item.h, containers.h, vocabulary.h, fields.h, flat.h, frame.h,
/// arena.h, pair.h, queue.h, service.h, fork.h, descriptors.h, latest.h, broadcast.h, replay.h, sent_ends.h,
/// recording.h, shared_list.h, base/observe.h.
#pragma once

#include "shmtree/base/observe.h"
#include "shmtree/base/result.h"
#include "shmtree/broadcast.h"
#include "shmtree/containers.h"
#include "shmtree/descriptors.h"
#include "shmtree/fields.h"
#include "shmtree/flat.h"
#include "shmtree/fork.h"
#include "shmtree/frame.h"
#include "shmtree/item.h"
#include "shmtree/latest.h"
#include "shmtree/pair.h"
#include "shmtree/queue.h"
#include "shmtree/recording.h"
#include "shmtree/replay.h"
#include "shmtree/sent_ends.h"
#include "shmtree/service.h"
#include "shmtree/shared_list.h"
#include "shmtree/value.h"
#include "shmtree/vocabulary.h"
