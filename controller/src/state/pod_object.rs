//! What notices and annotations of a pod are about.

use api::NamespacedName;

use super::ObjectRef;
use crate::index::convert::SeenPod;

/// The object of a pod.
pub(super) fn object(seen: &SeenPod) -> ObjectRef {
    let NamespacedName { namespace, name } = seen.pod.name.clone();
    ObjectRef { kind: "Pod", namespace: Some(namespace), name, uid: seen.pod.uid.clone() }
}
