//! Sightings of UDP packets, see [`ebpf::decide::seen`].

use ebpf::decide::seen;

use super::{family::Family, maps};

/// Leaves a sighting of a packet; 0 if there was none of another packet of its flow within this time. A function of its own, for the stack.
#[inline(never)]
pub(super) fn again<F: Family>(tuple: &F::Tuple, now: u32, window: u32) -> u32 {
    let (slot, sighting) = seen::sighting(tuple, now);
    let Some(place) = maps::SEEN.get_ptr_mut(slot) else { return 1 };
    // SAFETY: a value of an array, which other CPUs read and write as a whole word too.
    unsafe {
        let before = place.read_volatile();
        place.write_volatile(sighting);
        seen::again(before, sighting, window).into()
    }
}
