"""The rules about ResourceQuotas and LimitRanges."""
